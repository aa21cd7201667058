"""OpenAI's interface of responses, as a chat in another form: its body, its answer, its events.

Nothing is stored, so a request has to bring the whole conversation.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from knn_logits_app.requests import is_web
from knn_logits_serve.answers import (
    AnswerPart,
    End,
    Piece,
    Token,
    chat_token,
    piece_json,
    sources_json,
)
from knn_logits_serve.bodies import ChatBody, GenerationBody, NewTokens, Number, ResponseFormat
from knn_logits_serve.messages import (
    LONGEST_KIND,
    MOST_MESSAGES,
    Content,
    Message,
    Strict,
    Text,
    check_parts,
    text_of,
)
from knn_logits_serve.refusals import Refusal
from knn_logits_serve.request import GenerationRequest

_Kind = Literal[
    "message", "function_call", "function_call_output", "custom_tool_call",
    "custom_tool_call_output", "reasoning",
]  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"
# These fields need a store of conversations, a model that thinks, or work in the background.
_UNSUPPORTED = {
    "previous_response_id": "this server keeps no responses: send the conversation as input",
    "conversation": "this server keeps no conversations: send the conversation as input",
    "prompt": "this server keeps no prompts: send the text as input",
    "background": "this server answers at once: leave it out",
    "reasoning": "this model does not reason first: leave it out",
}


class Item(Strict):
    """One item of the input: a message, a call of a tool, or what a tool returned."""

    type: _Kind = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content = None
    call_id: Text | None = None
    name: Text | None = None
    arguments: Text = ""
    input: Text = ""
    output: Content = None

    _check_parts = field_validator("output", mode="before")(check_parts)

    @field_validator("content", mode="before")
    @classmethod
    def _check_content(cls, content: Any) -> Any:
        # The parts of a reasoning are of another kind, and are left out with it.
        parts = content if isinstance(content, list) else []
        kinds = {part.get("type") for part in parts if isinstance(part, dict)}
        return None if kinds == {"reasoning_text"} else check_parts(content)

    def message(self) -> Message | None:
        """Returns the message of a chat that this is; None for a model's reasoning."""
        if self.type == "reasoning":
            return None
        if self.type.endswith("_output"):
            output = text_of(self.output)
            return Message(role="tool", tool_call_id=self.call_id, content=output)
        if self.type.endswith("_call"):
            called = {"name": self.name or "tool", "arguments": self.arguments or self.input}
            call = {"id": self.call_id or "", "function": called}
            return Message.model_validate({"role": "assistant", "tool_calls": [call]})
        if self.role is None:
            raise Refusal("a message of the input has no role: give it", param="input")
        return Message(role=self.role, content=text_of(self.content))


class _Form(Strict):
    format: ResponseFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponseBody(GenerationBody):
    """A request for `/v1/responses`."""

    input: Annotated[list[Item], Field(fail_fast=True, max_length=MOST_MESSAGES)]
    instructions: Text | None = None
    max_output_tokens: NewTokens = None
    text: _Form | None = None
    top_logprobs: Number = None
    include: Annotated[list[Text], Field(fail_fast=True, max_length=64)] | None = None
    metadata: dict[str, Any] | None = None
    ask: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, content: Any) -> Any:
        for name, reason in _UNSUPPORTED.items():
            if content.get(name) not in (None, False, {}, {"effort": None}, {"effort": "none"}):
                raise Refusal(f"{name} is not supported here: {reason}", param=name)
        return content

    @field_validator("input", mode="before")
    @classmethod
    def _check_kinds(cls, content: Any) -> Any:
        if isinstance(content, str):
            return [{"role": "user", "content": content}]
        for item in content if isinstance(content, list) else ():
            kind = item.get("type", "message") if isinstance(item, dict) else None
            if isinstance(kind, str) and kind not in get_args(_Kind):
                raise ValueError(
                    f"an item of the type {kind[:LONGEST_KIND]!r} is not supported: remove it"
                )
        return content

    def chat(self) -> ChatBody:
        """Returns the request as one for a chat."""
        if self.n not in (None, 1):
            raise Refusal("a response has one answer: leave n out", param="n")
        messages = [message for item in self.input if (message := item.message()) is not None]
        if self.instructions:
            messages.insert(0, Message(role="developer", content=self.instructions))
        if not messages:
            raise Refusal("the input is empty: write something first", param="input")
        form = self.text.format if self.text is not None else None
        logprobs = _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        shared = {name: getattr(self, name) for name in GenerationBody.model_fields}
        return ChatBody.model_construct(
            **{
                **shared,
                "messages": messages,
                "max_completion_tokens": self.max_output_tokens,
                "response_format": form or self.response_format,
                "ask": self.ask,
                "logprobs": logprobs,
                "top_logprobs": self.top_logprobs,
            }
        )


class ResponseAnswer:
    """The answer to one request for a response."""

    names_events = True  # each event of the stream has its type as its name
    closing: bytes | None = None  # the last event says that the stream ends

    def __init__(self, body: ResponseBody, request: GenerationRequest) -> None:
        self.request, self._body = request, body
        self._id, self._item = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._texts: list[str] = []
        self._tokens: list[Token] = []
        self._end: End | None = None
        self._sent = 0

    def note(self, part: AnswerPart) -> None:
        if isinstance(part, Piece):
            self._texts.append(part.text)
            self._tokens += part.tokens
        else:
            self._end = part

    def whole(self) -> dict[str, Any]:
        return self._response(self._status)

    def chunks(self, part: AnswerPart) -> Iterable[dict[str, Any]]:
        if not self._sent:
            yield self._event("created", response=self._response("in_progress"))
            yield self._event("in_progress", response=self._response("in_progress"))
            opening = self._message("in_progress") | {"content": []}
            yield self._event("output_item.added", output_index=0, item=opening)
            yield self._event("content_part.added", **self._place, part=self._part())
        at = sum(len(text) for text in self._texts)
        self.note(part)
        if isinstance(part, Piece):
            content: dict[str, Any] = {"delta": part.text}
            content["logprobs"] = self._logprobs(part.tokens)
            if (sources := piece_json(part, at)) is not None:
                content["sources"] = sources
            yield self._event("output_text.delta", **self._place, **content)
            return
        for number, annotation in enumerate(self._annotations()):
            yield self._event(
                "output_text.annotation.added",
                **self._place,
                annotation_index=number,
                annotation=annotation,
            )
        whole = self._part()
        text, logprobs = whole["text"], whole["logprobs"]
        yield self._event("output_text.done", **self._place, text=text, logprobs=logprobs)
        yield self._event("content_part.done", **self._place, part=whole)
        item = self._message(self._status)
        yield self._event("output_item.done", output_index=0, item=item)
        yield self._event(self._status, response=self.whole())

    def failed(self, refusal: Refusal) -> Iterable[dict[str, Any]]:
        error = refusal.content["error"]
        details = {name: error[name] for name in ("message", "code", "param")}
        yield {"type": "error", "sequence_number": self._sent, **details}
        self._sent += 1
        failure = {"code": error["code"] or "server_error", "message": error["message"]}
        yield self._event("failed", response=self._response("failed") | {"error": failure})

    def last(self) -> None:
        """Nothing follows the last event."""

    @property
    def _status(self) -> str:
        cut = self._end is not None and self._end.reason == "length"
        return "incomplete" if cut else "completed"

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **content: Any) -> dict[str, Any]:
        self._sent += 1
        return {"type": f"response.{kind}", "sequence_number": self._sent - 1, **content}

    def _part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": "".join(self._texts),
            "annotations": self._annotations(),
            "logprobs": self._logprobs(self._tokens),
        }

    def _message(self, status: str) -> dict[str, Any]:
        message = {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self._part()],
        }
        sources = None if self._end is None else sources_json(self._end)
        return message if sources is None else {**message, "sources": sources}

    def _response(self, status: str) -> dict[str, Any]:
        body, sampling, cut = self._body, self.request.sampling, status == "incomplete"
        form = body.text.format if body.text is not None else None
        shown = {"type": "text" if form is None else form.type}
        if form is not None and form.json_schema is not None:
            shown |= form.json_schema.model_dump(by_alias=True)
        begun = status in ("in_progress", "failed")
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.request.body.model,
            "output": [] if begun else [self._message(status)],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": shown},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None if begun else self._usage(),
            "user": None,
        }

    def _usage(self) -> dict[str, Any]:
        read, written = self.request.prompt_tokens, 0 if self._end is None else self._end.tokens
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }

    def _logprobs(self, tokens: Sequence[Token]) -> list[dict[str, Any]]:
        if self.request.logprobs is None:
            return []
        return [chat_token(token) for token in tokens]

    def _annotations(self) -> list[dict[str, Any]]:
        return [] if self._end is None else annotations_of(self._end)


def annotations_of(end: End) -> list[dict[str, Any]]:
    """Returns the sources of an answer as OpenAI's citations."""
    sources = sources_json(end) or {}
    cited = [
        _citation(span["document"], span["start"], span["end"]) for span in sources.get("spans", ())
    ]
    if end.answer is not None and end.answer.near:
        length = len(end.answer.text)
        cited += [
            _citation(passage, 0, length) for passage in sources["passages"] if passage["read"]
        ]
    return cited


def _citation(document: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    uri, title = document["uri"] or "", document["title"] or document["document"]
    place = {"start_index": start, "end_index": end}
    if is_web(uri):
        return {"type": "url_citation", "title": title, "url": uri, **place}
    file = {"file_id": document["document"], "filename": title, "index": end}
    return {"type": "file_citation", **file, **place}
