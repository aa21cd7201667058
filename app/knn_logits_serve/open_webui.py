"""Adds to OpenAI's interface what Open WebUI understands, at the address /open-webui.

The server of Open WebUI passes chunks {"event": ...} on to its page. Each document becomes a
source, and the coloured words become a frame above the answer. A "[1]" after the words of a
document becomes a chip. The sources are known only after the words are written. So the text with
its numbers is sent again at the end, in an event of OpenAI's responses interface, which Open WebUI
accepts among the chunks of a chat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any
from urllib.parse import urlsplit

from knn_logits import PassageEffect, Source
from knn_logits_app.views import chat_page
from knn_logits_serve.answers import Answer, AnswerPart, End, Span, spans_of, within
from knn_logits_serve.bodies import ChatBody
from knn_logits_serve.messages import Message
from knn_logits_serve.request import GenerationRequest
from knn_logits_serve.served import Served

# Words get a number only if the document's share in them is at least this large.
_LEAST = 0.25
_PASSAGES = 4
# This sign before each number marks it, so that it can be removed when the chat comes back.
_SIGN = "\u2060"
_NUMBER = re.compile(f"{_SIGN}\\[\\d+\\]")
# Open WebUI makes requests of its own after an answer, which begin with this line. The empty answer
# to each is listed by the field that the request wants.
_TASK = "### Task:"
_HISTORY, _HISTORY_END, _USER = "<chat_history>", "</chat_history>", "USER:"
_NOTHING: dict[str, Any] = {"follow_ups": [], "tags": [], "queries": [], "text": ""}
_TITLE_WORDS = 6


class OpenWebUIAnswer(Answer):
    """The answer to a chat of Open WebUI, with events for its page in a stream."""

    def __init__(self, served: Served, request: GenerationRequest) -> None:
        super().__init__(request)
        self._served = served

    def chunks(self, part: AnswerPart) -> Iterable[dict[str, Any]]:
        """Yields the events for a part of an answer."""
        if isinstance(part, End) and part.answer is not None:
            read = [row for row in part.answer.passages if row.read or not part.answer.answered]
            for passage in read if part.answer.near else ():
                yield _event("source", _passage(passage))
        if isinstance(part, End) and part.trace is not None and self.request.n == 1:
            yield from self._sources(part)
        yield from super().chunks(part)

    def _sources(self, end: End) -> Iterable[dict[str, Any]]:
        sequence = within(end)
        if sequence is None or not sequence.tokens:
            return
        store = self._served.stores[self.request.stores[0]]
        yield _event("embeds", {"embeds": [chat_page(sequence, store.manifest.metric)]})
        spans = [span for span in spans_of(end) if span.source.document.share >= _LEAST]
        numbers: dict[tuple[str, str], int] = {}
        of_document: dict[int, list[Source]] = {}
        for span in spans:
            number = numbers.setdefault(_document(span), len(numbers) + 1)
            of_document.setdefault(number, []).append(span.source)
        for sources in of_document.values():
            yield _event("source", _source(sources))
        if spans:
            text = numbered(end.text, spans, numbers)
            part = {"type": "output_text", "text": text}
            yield {"type": "response.content_part.done", "content_index": 0, "part": part}


def numbered(text: str, spans: list[Span], numbers: dict[tuple[str, str], int]) -> str:
    """Inserts the number of a document after the words that it gave, once for spans in a row."""
    parts, at = [], 0
    for span, following in zip_longest(spans, spans[1:]):
        number = numbers[_document(span)]
        goes_on = following is not None and numbers[_document(following)] == number
        if goes_on and not text[span.end : following.start].strip():
            continue
        parts += [text[at : span.end], f"{_SIGN}[{number}]"]
        at = span.end
    return "".join([*parts, text[at:]])


def _document(span: Span) -> tuple[str, str]:
    return span.source.document.store, span.source.document.document


def _source(sources: list[Source]) -> dict[str, Any]:
    """Describes a document with its passages for Open WebUI's list of sources."""
    document = sources[0].document
    name = document.title or document.document
    uri = document.uri if _is_web(document.uri) else ""
    passages = [
        f"… {source.neighbor.before}**{source.words}**{source.after} …"
        for source in sources[:_PASSAGES]
        if source.neighbor is not None
    ] or [name]
    # Open WebUI distinguishes sources by this name.
    about = {"source": uri or f"{document.store}: {name}", "name": name}
    return {
        "source": {"name": name, "url": uri, "id": about["source"]},
        "document": passages,
        "metadata": [about] * len(passages),
        "distances": [round(source.document.share, 3) for source in sources[: len(passages)]],
    }


def _passage(passage: PassageEffect) -> dict[str, Any]:
    """Describes a passage that was read for Open WebUI's list of sources."""
    uri = passage.uri if _is_web(passage.uri) else ""
    about = {"source": uri or f"{passage.store}: {passage.title}", "name": passage.title}
    return {
        "source": {"name": passage.title, "url": uri, "id": about["source"]},
        "document": [passage.text],
        "metadata": [about],
    }


def _is_web(uri: str | None) -> bool:
    try:
        return urlsplit(uri or "").scheme.lower() in ("http", "https")
    except ValueError:
        return False


def _event(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"event": {"type": kind, "data": data}}


def without_numbers(body: ChatBody) -> ChatBody:
    """Removes the numbers of sources from the answers of a chat, since no model wrote them."""
    messages = [
        Message(role=message.role, content=_NUMBER.sub("", message.text))
        if message.role == "assistant"
        else message
        for message in body.messages
    ]
    return body.model_copy(update={"messages": messages})


def task_of(body: ChatBody) -> str | None:
    """Returns a request of Open WebUI itself, such as for a title; None for a person's message."""
    last = body.messages[-1]
    text = last.text
    return text if last.role == "user" and text.startswith(_TASK) and not body.stream else None


def task_answer(task: str) -> str:
    """Answers without the model: a title is the beginning of the message, all else is empty."""
    for field, nothing in _NOTHING.items():
        if f'"{field}"' in task:
            return json.dumps({field: nothing})
    history = task.partition(_HISTORY)[2].partition(_HISTORY_END)[0]
    lines = (line for line in history.splitlines() if line.strip().startswith(_USER))
    words = next((line.strip().removeprefix(_USER).split() for line in lines), []) or ["Chat"]
    title = " ".join(words[:_TITLE_WORDS])
    return json.dumps({"title": title + (" …" if len(words) > _TITLE_WORDS else "")})
