"""Refusals of requests, in the form that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from knn_logits import KNNLogitsError
from knn_logits.errors import ConfigError, LimitError

_MAX_CHARACTERS = 300
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
}


class Refusal(KNNLogitsError):
    """A request is refused, in the form that OpenAI's clients read."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]} …")
        self.status = status
        kind = _KINDS.get(status, "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": param, "code": code}
        self.content: dict[str, Any] = {"error": error}
        self.headers = {"www-authenticate": "Bearer"} if status == 401 else {}


def too_long(message: str, param: str | None = None) -> Refusal:
    """Refuses a text that is too long for the model or the server."""
    return Refusal(message, param=param, code="context_length_exceeded")


def refusal_of(error: BaseException) -> Refusal:
    """Turns any error into a refusal, which shows no path and no traceback."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, LimitError):
        return too_long(str(error))
    if isinstance(error, ConfigError):
        return Refusal(str(error))
    if isinstance(error, KNNLogitsError):
        return Refusal(f"the datastore cannot be asked ({type(error).__name__}): try again", 500)
    return Refusal("the server failed on this request: see the line in its log", 500)
