"""Checks the bodies of requests, field by field, and refuses them as OpenAI's clients expect.

A field that would change the text but is not supported is refused. Other unknown fields are
ignored, since clients send many.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from knn_logits import KNNLogitsError
from knn_logits.errors import ConfigError, LimitError
from knn_logits.hosting import check_settings

_MAX_PROMPTS, _MAX_MESSAGES = 128, 4096
_MAX_STOPS, _MAX_STOP_CHARACTERS = 16, 256
# Number of characters. A trace holds the lock of the tokenizer for about a second then.
MAX_TRACED = 20_000
_MAX_REASON = 300
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
}

Body = TypeVar("Body", bound=BaseModel)
_Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_CHARACTERS)]


def _whole(value: Any) -> Any:
    """Takes 40.0 for 40, as clients in JavaScript or with sliders send it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _limit(value: Any) -> Any:
    return None if value == -1 else _whole(value)  # -1 sets no limit in llama.cpp


_Whole = BeforeValidator(_whole)
NewTokens = Annotated[Annotated[int, Field(ge=0, le=1_000_000)] | None, BeforeValidator(_limit)]
Number = Annotated[Annotated[int, Field(ge=0, le=20)] | None, _Whole]
_Token = Annotated[int, Field(ge=0, le=2**31)]
# Only the first error is said, and each one takes a kilobyte, so that lists stop there.
_Tokens = Annotated[list[_Token], Field(fail_fast=True, min_length=1, max_length=1_000_000)]
# These fields are not supported, so they may only have a value that changes nothing: the number
# beside them, or one of _NOTHING. `tools` may have any value, since Open WebUI sends it and a model
# need not call a tool.
_UNSUPPORTED = {
    **dict.fromkeys(
        (
            "audio", "frequency_penalty", "function_call", "grammar", "guided_json", "ignore_eos",
            "logit_bias", "min_tokens", "mirostat", "presence_penalty", "reasoning_effort",
            "response_format", "stop_token_ids", "suffix", "tool_choice",
        ),
        0,
    ),
    **dict.fromkeys(("best_of", "n", "repeat_penalty", "repetition_penalty", "typical_p"), 1),
}  # fmt: skip
_NOTHING: tuple[Any, ...] = (None, [], {}, "", "none", "auto", {"type": "text"}, ["text"])
_REASONS = {
    "content": "give a text, or parts of the type text, since the model reads nothing else",
    "prompt": "give a text, a list of texts, or one or several lists of tokens",
    "stop": f"give at most {_MAX_STOPS} texts of at most {_MAX_STOP_CHARACTERS} characters each",
}


class Refusal(KNNLogitsError):
    """A request is refused, in the form that OpenAI's clients read."""

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None
    ) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= _MAX_REASON else f"{line[:_MAX_REASON]} …")
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


Text = Annotated[str, Field(max_length=4_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=512)]


class Strict(BaseModel):
    """A part of a body. Fields that are not named here are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Part(Strict):
    """A part of a message, which has to be text."""

    type: Literal["text"]
    text: Text


Content = Text | Annotated[list[Part], Field(fail_fast=True, max_length=_MAX_MESSAGES)] | None


class Message(Strict):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class _StreamOptions(Strict):
    include_usage: bool | None = None


class GenerationBody(Strict):
    """The fields that all requests for text share."""

    model: Name
    max_tokens: NewTokens = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    # 0 and -1 allow all tokens
    top_k: Annotated[Annotated[int, Field(ge=-1, le=2**31)] | None, _Whole] = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[Annotated[int, Field(ge=-(2**63), lt=2**63)] | None, _Whole] = None
    stop: _Stop | Annotated[list[_Stop], Field(fail_fast=True, max_length=_MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    knn: bool | dict[str, Any] | None = None  # the switch, or settings of the memory

    @field_validator("knn")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        return check_settings(value, "request") if isinstance(value, dict) else value

    @field_validator("stop", mode="before")
    @classmethod
    def _stops(cls, value: Any) -> Any:
        return None if value in ("", [""]) else value

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts before which the answer ends."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionBody(GenerationBody):
    """A request for `/v1/completions`."""

    prompt: (
        Text
        | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=_MAX_PROMPTS)]
        | _Tokens
        | Annotated[list[_Tokens], Field(fail_fast=True, min_length=1, max_length=_MAX_PROMPTS)]
    )
    echo: bool | None = None
    logprobs: Number = None


class ChatBody(GenerationBody):
    """A request for `/v1/chat/completions`."""

    messages: Annotated[
        list[Message], Field(fail_fast=True, min_length=1, max_length=_MAX_MESSAGES)
    ]
    max_completion_tokens: NewTokens = None
    ask: bool | None = None  # whether the documents are asked, or the chat is continued
    outside: Literal["decline", "model"] = "decline"  # what happens where no passage answers
    logprobs: bool | None = None


class TraceBody(Strict):
    """A request for `/v1/trace`."""

    model: Name
    text: Annotated[str, Field(min_length=1, max_length=MAX_TRACED)]
    min_tokens: Annotated[int, Field(ge=1)] = 6
    documents: Annotated[int, Field(ge=0, le=100)] = 10


@dataclass(frozen=True)
class Prompt:
    """A text to continue."""

    ids: list[int]
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
    seed: int = 0  # of the first prompt; each further one has the next number


@dataclass(frozen=True)
class GenerationRequest:
    """A request that was checked: its body, and what follows from it and the model."""

    body: GenerationBody
    chat: bool
    prompts: tuple[Prompt, ...]
    stores: tuple[str, ...] = ()  # the datastores that vote; empty for the model alone
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that the request gives
    new_tokens: int = 16
    sampling: Sampling = Sampling()
    logprobs: int | None = None  # likeliest tokens at each position; None: no probabilities
    echo: bool = False
    question: str | None = None  # is asked of the documents, after these messages
    history: tuple[Mapping[str, str], ...] = ()
    drawn: bool = False  # as coloured words; only then the likeliest other tokens are kept

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompts)


def body_of(kind: type[Body], data: bytes) -> Body:
    """Reads and checks the body of a request."""
    try:
        content = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise Refusal("the request is not UTF-8: send JSON in UTF-8") from None
    except (ValueError, RecursionError):
        raise Refusal("the request is not JSON: send a JSON object") from None
    if not isinstance(content, dict):
        raise Refusal("the request is JSON, but not an object: send a JSON object")
    try:
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except (UnicodeError, RecursionError):
        raise Refusal(
            "the request contains half a character, or is nested too deeply: send valid, flat JSON"
        ) from None
    for name, number in _UNSUPPORTED.items():
        if content.get(name) not in (*_NOTHING, number):
            raise Refusal(f"{name} is not supported here: leave it out", param=name)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(step) for step in first["loc"]]
    name = place[0] if place else ""
    # pydantic's places also name the branches of a union, which a client did not write.
    shown = [step for step in place if re.fullmatch(r"[a-z_]+|\d+", step)]
    reason = str(first["msg"]).removeprefix("Value error, ")
    known = (_REASONS[step] for step in shown if step in _REASONS)
    reason = next(known, reason[:1].lower() + reason[1:])
    raise Refusal(f"{'.'.join(shown)}: {reason}" if shown else reason, param=name or None)
