"""Makes answers in OpenAI's form, as a whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from knn_logits_serve.parts import End, Piece, Token
from knn_logits_serve.request import GenerationRequest
from knn_logits_serve.sources import sources_json


class Answer:
    """The answer to one request."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._id = ("chatcmpl-" if request.chat else "cmpl-") + uuid.uuid4().hex
        self._created = int(time.time())
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, list[Token]] = {}
        self._lengths: dict[int, int] = {}
        self._ends: dict[int, End] = {}
        self._written = 0

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "choices": choices,
        }

    @property
    def usage(self) -> dict[str, int]:
        """The number of tokens that were read and written."""
        read, written = self._request.prompt_tokens, self._written
        return {
            "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written,
        }  # fmt: skip

    def note(self, part: Piece | End) -> None:
        """Takes a part of an answer that is sent as a whole."""
        if isinstance(part, Piece):
            self._texts.setdefault(part.choice, []).append(part.text)
            self._tokens.setdefault(part.choice, []).extend(part.tokens)
        else:
            self._ends[part.choice] = part
            self._written += part.tokens

    def whole(self) -> dict[str, Any]:
        """Returns the whole answer, once `note` has got its last part."""
        kind = "chat.completion" if self._request.chat else "text_completion"
        choices = []
        for number in sorted(self._ends):
            end = self._ends[number]
            text = "".join(self._texts.get(number, ()))
            choice: dict[str, Any] = {"index": number}
            if self._request.chat:
                choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                choice["text"] = text
            choice["logprobs"] = self._logprobs(number, self._tokens.get(number, ()))
            choice["finish_reason"] = end.reason
            _with_sources(choice, end)
            choices.append(choice)
        return {**self._frame(kind, choices), "usage": self.usage}

    def chunks(self, part: Piece | End) -> Iterable[dict[str, Any]]:
        """Yields the chunks of a stream for a part of an answer."""
        chat = self._request.chat
        kind = "chat.completion.chunk" if chat else "text_completion"
        number = part.choice
        choice: dict[str, Any] = {"index": number}
        if chat and number not in self._lengths:
            opening = {"role": "assistant", "content": ""}
            yield self._frame(
                kind, [{**choice, "delta": opening, "logprobs": None, "finish_reason": None}]
            )
        self._lengths.setdefault(number, 0)
        if isinstance(part, Piece):
            content = {"delta": {"content": part.text}} if chat else {"text": part.text}
            logprobs = self._logprobs(number, part.tokens)
            yield self._frame(
                kind, [{**choice, **content, "logprobs": logprobs, "finish_reason": None}]
            )
            return
        self._written += part.tokens
        nothing: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        choice |= {**nothing, "logprobs": None, "finish_reason": part.reason}
        _with_sources(choice, part)
        yield self._frame(kind, [choice])

    def last(self) -> dict[str, Any] | None:
        """Returns the last chunk of a stream, which has the usage; None if it is not wanted."""
        if not self._request.usage:
            return None
        kind = "chat.completion.chunk" if self._request.chat else "text_completion"
        return {**self._frame(kind, []), "usage": self.usage}

    def _logprobs(self, number: int, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if self._request.logprobs is None:
            return None
        if self._request.chat:
            return {"content": [_chat_token(token) for token in tokens], "refusal": None}
        offsets, at = [], self._lengths.get(number, 0)
        for token in tokens:
            offsets.append(at)
            at += len(token.text)
        self._lengths[number] = at
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_by_text(token) for token in tokens]
            if self._request.logprobs
            else None,
            "text_offset": offsets,
        }


def _by_text(token: Token) -> dict[str, float] | None:
    """Returns the likeliest tokens by their text. Of two with the same text the likelier wins."""
    if token.logprob is None:
        return None
    by_text: dict[str, float] = {}
    for text, value in token.likeliest:
        by_text.setdefault(text, value)
    return by_text


def _chat_token(token: Token) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": list(token.text.encode()),
        "top_logprobs": [
            {"token": text, "logprob": value, "bytes": list(text.encode())}
            for text, value in token.likeliest
        ],
    }


def _with_sources(choice: dict[str, Any], end: End) -> None:
    sources = sources_json(end)
    if sources is not None:
        choice["sources"] = sources


def models_json(names: Mapping[str, Sequence[str]], created: int) -> dict[str, Any]:
    """Returns the list of models."""
    return {"object": "list", "data": [model_json(name, names[name], created) for name in names]}


def model_json(name: str, stores: Sequence[str], created: int) -> dict[str, Any]:
    """Describes a model and the datastores that vote under its name."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "knn-logits",
        "datastores": list(stores),
    }


def message_json(model: str, text: str) -> dict[str, Any]:
    """Returns an answer to a chat that no model wrote."""
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
