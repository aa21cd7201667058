"""Refusals of requests, in the form that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from knn_logits import ConfigError, KNNLogitsError, LimitError

_LONGEST = 300
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
}


class Refusal(KNNLogitsError):
    """A request is refused."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …")
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def content(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = _KINDS.get(self.status, "invalid_request_error")
        return {
            "error": {
                "message": str(self), "type": kind, "param": self.param, "code": self.code,
            }
        }  # fmt: skip

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        headers = {"retry-after": str(self.retry_after)} if self.retry_after is not None else {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def refusal_of(error: BaseException) -> Refusal:
    """Turns any error into a refusal, which shows no path and no traceback."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, LimitError):
        return Refusal(str(error), code="context_length_exceeded")
    if isinstance(error, ConfigError):
        return Refusal(str(error))
    if isinstance(error, KNNLogitsError):
        return Refusal(f"the datastore cannot be request ({type(error).__name__}): try again", 500)
    return Refusal("the server failed on this request: see the line in its log", 500)
