"""Checks the bodies of requests, field by field, and turns chats into what a model continues.

A field that would change the text but is not supported is refused. Other unknown fields are
ignored, since clients send many.

A model without a chat template was never trained to chat. It continues a text, and its datastore
contains texts but no chats. So the plain template adds no names of speakers, which would move the
model away from the passages. Each message of the user begins a paragraph, which the model
continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from knn_logits import ConfigError, chat_ids, check_settings
from knn_logits_serve.request import Refusal

_MOST_CHOICES = 128
_MOST_MESSAGES = 4096
_MOST_BIASES = 1024
_MOST_STOPS, _LONGEST_STOP = 16, 256

Body = TypeVar("Body", bound=BaseModel)
_Text = Annotated[str, Field(max_length=4_000_000)]
_Name = Annotated[str, Field(min_length=1, max_length=512)]
_Stop = Annotated[str, Field(min_length=1, max_length=_LONGEST_STOP)]
_Choices = Annotated[int, Field(ge=1, le=_MOST_CHOICES)] | None
_NewTokens = Annotated[int, Field(ge=0, le=1_000_000)] | None
_Penalty = Annotated[float, Field(ge=-2, le=2)] | None
_Number = Annotated[int, Field(ge=0, le=20)] | None
_Token = Annotated[int, Field(ge=0, le=2**31)]
# Only the first error is said, and each one takes a kilobyte, so that lists stop there.
_Tokens = Annotated[list[_Token], Field(fail_fast=True, min_length=1, max_length=1_000_000)]
# These fields are not supported, so they may only have the values of `_NOTHING`. `tools` may have
# any value, since Open WebUI sends it and a model need not call a tool.
_UNSUPPORTED = (
    "tool_choice", "function_call", "response_format", "suffix", "audio",
    "modalities", "prediction", "web_search_options",
)  # fmt: skip
_REASONS = {
    "prompt": "give a text, a list of texts, or one or several lists of tokens",
    "stop": f"give at most {_MOST_STOPS} texts of at most {_LONGEST_STOP} characters each",
}
_NOTHING: tuple[Any, ...] = (None, [], {}, "", "none", "auto", {"type": "text"}, ["text"])


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Knn(BaseModel):
    """The settings of the memory: `on`, `stores`, and beside them those of `settings_for`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    on: bool = True
    stores: Annotated[list[_Name], Field(fail_fast=True, min_length=1, max_length=64)] | None = None
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
    n: _Choices = None
    best_of: _Choices = None
    max_tokens: _NewTokens = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(fail_fast=True, max_length=_MOST_STOPS)] | None = (
        None
    )
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    knn: Knn | bool | None = None

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _tokens(cls, given: Any) -> Any:
        if isinstance(given, dict) and (
            len(given) > _MOST_BIASES
            or not all(re.fullmatch(r"\d{1,9}", str(token)) for token in given)
        ):
            raise ValueError(f"give at most {_MOST_BIASES:,} tokens by their numbers")
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
        | Annotated[list[_Text], Field(fail_fast=True, min_length=1, max_length=_MOST_CHOICES)]
        | _Tokens
        | Annotated[list[_Tokens], Field(fail_fast=True, min_length=1, max_length=_MOST_CHOICES)]
    )
    echo: bool | None = None
    logprobs: _Number = None


class _Part(_Body):
    type: Literal["text"]
    text: _Text


class Message(_Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: (
        _Text | Annotated[list[_Part], Field(fail_fast=True, max_length=_MOST_MESSAGES)] | None
    ) = None

    @property
    def text(self) -> str:
        """The text of the message."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def turn_role(self) -> str:
        """The role for a template, which knows "developer" by its older name."""
        return "system" if self.role == "developer" else self.role


class ChatBody(_GenerationBody):
    """A request for `/v1/chat/completions`."""

    messages: Annotated[
        list[Message], Field(fail_fast=True, min_length=1, max_length=_MOST_MESSAGES)
    ]
    max_completion_tokens: _NewTokens = None
    ask: bool | None = None  # whether the documents are asked, or the chat is continued
    logprobs: bool | None = None
    top_logprobs: _Number = None

    @model_validator(mode="after")
    def _logprobs_on(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: set logprobs to true")
        return self


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
    for name in _UNSUPPORTED:
        if content.get(name) not in _NOTHING:
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
    reason = _REASONS.get(name, reason[:1].lower() + reason[1:])
    raise Refusal(f"{'.'.join(shown)}: {reason}" if shown else reason, param=name or None)


class Chat:
    """Turns messages into the text, or the tokens, that a model continues."""

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self._tokenizer, self._template = tokenizer, template
        # Whether the plain template is used.
        self.plain = template is None and not getattr(tokenizer, "chat_template", None)
        if template is not None:
            try:
                self.given([Message(role="user", content="a")])
            except Refusal as error:
                raise ConfigError(f"the chat template cannot be used: {error}") from error

    def given(self, messages: Sequence[Message]) -> str | list[int]:
        """Returns what the model continues: the tokens of a template, or a plain text."""
        if not any(message.text.strip() for message in messages):
            raise Refusal("the messages have no text: write something first", param="messages")
        if self.plain:
            return plain_text(messages)
        answered = messages[-1].role == "assistant"
        turns = [{"role": message.turn_role, "content": message.text} for message in messages]
        try:
            return chat_ids(
                self._tokenizer,
                turns,
                chat_template=self._template,
                add_generation_prompt=not answered,
                continue_final_message=answered,
            )
        except Exception as error:  # A template can raise any error, with any message.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Refusal(
                f"the chat template does not accept these messages ({reason}): change them",
                param="messages",
            ) from error


def plain_text(messages: Sequence[Message]) -> str:
    """Makes a paragraph of each message. An answer continues the message before it."""
    text = ""
    for message in messages:
        content = message.text
        if not content.strip():
            continue
        if message.role == "assistant":
            joined = not text or text[-1].isspace() or content[0].isspace()
            text += content if joined else f" {content}"
        else:
            text += f"\n\n{content}" if text else content
    return text
