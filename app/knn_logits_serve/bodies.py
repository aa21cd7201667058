"""Checks the bodies of requests, field by field.

A field that would change the text but is not supported is refused. Other unknown fields are
ignored, since clients send many.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from knn_logits import check_settings
from knn_logits_serve.refusals import Refusal

MOST_CHOICES = 128
MOST_NEW_TOKENS = 1_000_000
_MOST_MESSAGES = 4096
_MOST_STOPS, _LONGEST_STOP = 16, 256

Body = TypeVar("Body", bound=BaseModel)
_Text = Annotated[str, Field(max_length=4_000_000)]
_Name = Annotated[str, Field(min_length=1, max_length=512)]
_Stop = Annotated[str, Field(min_length=1, max_length=_LONGEST_STOP)]
_Token = Annotated[int, Field(ge=0, le=2**31)]
# These fields are not supported, so they may only have the values of `_NOTHING`. `tools` may have
# any value, since Open WebUI sends it and a model need not call a tool.
_UNSUPPORTED = (
    "tool_choice", "function_call", "response_format", "suffix", "audio",
    "modalities", "prediction", "web_search_options",
)  # fmt: skip
_NOTHING: tuple[Any, ...] = (None, [], {}, "", "none", "auto", {"type": "text"}, ["text"])


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Knn(BaseModel):
    """The settings of the memory.

    Attributes:
        on: Whether the neighbors vote.
        stores: Names of the datastores, which are searched as one.
        settings: The settings of `settings_for("request")` that the request gives; for all others
            the server's or the datastore's hold. They stand beside `on` and `stores`.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    on: bool = True
    stores: Annotated[list[_Name], Field(min_length=1, max_length=64)] | None = None
    settings: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _checked(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        places = {name: value for name, value in content.items() if name in ("on", "stores")}
        settings = {name: value for name, value in content.items() if name not in places}
        return {**places, "settings": check_settings(settings, "request")}


class _StreamOptions(_Body):
    include_usage: bool | None = None


class _GenerationBody(_Body):
    """The fields that completions and chats share."""

    model: _Name
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=MOST_NEW_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=_MOST_STOPS)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    knn: Knn | bool | None = None

    @field_validator("logit_bias")
    @classmethod
    def _tokens(cls, given: dict[str, float] | None) -> dict[str, float] | None:
        if given and (
            len(given) > 1024 or not all(re.fullmatch(r"\d{1,9}", token) for token in given)
        ):
            raise ValueError("give at most 1,024 tokens by their numbers")
        return given

    @model_validator(mode="after")
    def _returns_all(self) -> _GenerationBody:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of must be n, since every text that is written is returned")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts before which the answer ends."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionBody(_GenerationBody):
    """A request for `/v1/completions`."""

    prompt: (
        _Text
        | Annotated[list[_Text], Field(min_length=1, max_length=MOST_CHOICES)]
        | Annotated[list[_Token], Field(min_length=1, max_length=1_000_000)]
        | Annotated[
            list[Annotated[list[_Token], Field(min_length=1, max_length=1_000_000)]],
            Field(min_length=1, max_length=MOST_CHOICES),
        ]
    )
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class _Part(_Body):
    type: Literal["text"]
    text: _Text


class Message(_Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: _Text | Annotated[list[_Part], Field(max_length=_MOST_MESSAGES)] | None = None

    @property
    def text(self) -> str:
        """The text of the message."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatBody(_GenerationBody):
    """A request for `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=_MOST_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=0, le=MOST_NEW_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _logprobs_on(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: set logprobs to true")
        return self


def content_of(body: bytes) -> dict[str, Any]:
    """Reads a body as a JSON object."""
    try:
        content = json.loads(body.decode("utf-8"))
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
    for name in _UNSUPPORTED:
        if content.get(name) not in _NOTHING:
            raise Refusal(f"{name} is not supported here: leave it out", param=name)
    return content


def completion_of(content: dict[str, Any]) -> CompletionBody:
    """Checks the body of a completion."""
    return _checked(CompletionBody, content)


def chat_of(content: dict[str, Any]) -> ChatBody:
    """Checks the body of a chat. Its errors are those of `completion_of`."""
    return _checked(ChatBody, content)


def _checked(kind: type[Body], content: dict[str, Any]) -> Body:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise _refused(error) from None


def _refused(error: ValidationError) -> Refusal:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(step) for step in first["loc"]]
    name = place[0] if place else None
    # pydantic's places also name the branches of a union, which a client did not write.
    shown = [step for step in place if re.fullmatch(r"[a-z_]+|\d+", step)]
    reason = str(first["msg"]).removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    if name == "prompt":
        reason = "give a text, a list of texts, or one or several lists of tokens"
    elif name == "stop":
        reason = f"give at most {_MOST_STOPS} texts of at most {_LONGEST_STOP} characters each"
    return Refusal(f"{'.'.join(shown)}: {reason}" if shown else reason, param=name)
