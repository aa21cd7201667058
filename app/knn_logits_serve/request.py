"""A checked request, which is the same for completions and chats, and refusals of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """A request is refused, in the form that OpenAI's clients read."""

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
        kind = _KINDS.get(status, "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": param, "code": code}
        self.content: dict[str, Any] = {"error": error}
        self.headers = {"www-authenticate": "Bearer"} if status == 401 else {}
        if retry_after is not None:
            self.headers["retry-after"] = str(retry_after)


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


@dataclass(frozen=True)
class Prompt:
    """A text to continue, or the source of an encoder-decoder model."""

    inputs: Mapping[str, Any]  # arguments of the model's `generate()`
    ids: list[int]  # the text so far; for an encoder-decoder model the beginning of the target
    tokens: int  # that the request gave
    text: str = ""
    message: str | None = None  # the person's words, where a template put others around them
    opens: bool = False  # whether the answer is a text of its own, which begins without a blank


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from the mixture's distribution, as OpenAI names it."""

    temperature: float = 0.0  # 0 takes the likeliest token
    top_p: float = 1.0
    top_k: int = 0  # 0 allows all tokens
    min_p: float = 0.0  # the least share of the likeliest token's probability
    repetition: float = 1.0
    seed: int = 0  # of the first choice; each further one has the next number
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerationRequest:
    """A request that was checked."""

    model: str  # as the client wrote it
    chat: bool
    prompts: tuple[Prompt, ...]
    stores: tuple[str, ...] = ()  # the datastores that vote; empty for the model alone
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that the request gives
    n: int = 1  # answers to each prompt
    new_tokens: int = 16
    sampling: Sampling = Sampling()
    stops: tuple[str, ...] = ()
    grammar: str | None = None  # that the answer follows
    logprobs: int | None = None  # likeliest tokens at each position; None: no probabilities
    echo: bool = False
    stream: bool = False
    usage: bool = False  # whether a stream ends with the number of tokens
    question: str | None = None  # is asked of the documents, after these messages
    history: tuple[Mapping[str, str], ...] = ()
    drawn: bool = False  # as coloured words; only then the likeliest other tokens are kept

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)
