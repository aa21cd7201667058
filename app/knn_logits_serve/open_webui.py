"""Adds the events of Open WebUI to OpenAI's interface, at the address /open-webui.

The server of Open WebUI passes chunks {"event": ...} on to its page. Each place in a document
becomes a source below the answer, and a folded frame above it has the coloured words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from textwrap import shorten
from typing import Any

from knn_logits_app.requests import is_web
from knn_logits_app.views import chat_page
from knn_logits_serve.answers import Answer, AnswerPart, End, Span, spans_of, within
from knn_logits_serve.bodies import ChatBody

_MIN_SHARE = 0.25  # of the document of a source
_MAX_PASSAGES = 4
# Label of the coloured words until they are opened, since the answer is below them.
_FOLDED = "Where each word comes from"
# Open WebUI makes requests of its own after an answer, which begin with this line. The empty answer
# to each is listed by the field that the request wants.
_TASK = "### Task:"
_USER = "USER:"
_NOTHING: dict[str, Any] = {"follow_ups": [], "tags": [], "queries": [], "text": ""}
_TITLE = "title"
_MAX_TITLE = 50  # characters


class OpenWebUIAnswer(Answer):
    """The answer to a chat of Open WebUI, with events for its page in a stream."""

    def chunks(self, part: AnswerPart) -> Iterable[dict[str, Any]]:
        """Yields the events for a part of an answer."""
        if isinstance(part, End) and part.answer is not None:
            for passage in part.answer.passages:
                yield _source(passage.store, passage.title, passage.uri, [passage.text])
        sequence = within(part) if isinstance(part, End) else None
        if isinstance(part, End) and sequence is not None and sequence.tokens:
            yield _event("embeds", {"embeds": [chat_page(sequence, _FOLDED)]})
            yield from _sources(spans_of(part))
        yield from super().chunks(part)


def _sources(spans: list[Span]) -> Iterable[dict[str, Any]]:
    """Yields a source for each place of a document, with the passages there."""
    places: dict[tuple[str, str, str], list[str]] = {}
    uris = {}
    for source in (span.source for span in spans):
        document, near = source.document, source.neighbor
        if document.share >= _MIN_SHARE:
            title = (near and near.title) or document.title or document.document
            place = document.store, document.document, title
            passage = f"{near.before}{source.words}{near.after}" if near else title
            places.setdefault(place, []).append(passage)
            uris[place] = near.uri if near else document.uri
    for (store, document_id, title), passages in places.items():
        uri = uris[store, document_id, title]
        yield _source(store, title, uri, passages[:_MAX_PASSAGES])


def _source(store: str, name: str, uri: str | None, passages: list[str]) -> dict[str, Any]:
    """An entry of Open WebUI's list of sources, which its name distinguishes from others."""
    web = uri if is_web(uri) else ""
    metadata = {"source": web or f"{store}: {name}", "name": name}
    content = {
        "source": {"name": name, "url": web, "id": metadata["source"]},
        "document": passages,
        "metadata": [metadata] * len(passages),
    }
    return _event("source", content)


def _event(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"event": {"type": kind, "data": data}}


def task_answer(body: ChatBody) -> str | None:
    """Answers requests of Open WebUI itself; None for a person's message.

    A title is the beginning of the first message, and all else is empty. No model is asked: a small
    one copies the example of the task, and each message would wait for three answers more.
    """
    last = body.messages[-1]
    task = last.text
    if last.role != "user" or body.stream or not task.startswith(_TASK):
        return None
    for field, nothing in _NOTHING.items():
        if f'"{field}"' in task:
            return json.dumps({field: nothing})
    return title_of(task) if f'"{_TITLE}"' in task else None


def title_of(task: str) -> str:
    """Returns the first words of the first message in the history of a chat."""
    history = task.partition("<chat_history>")[2].partition("</chat_history>")[0]
    lines = (line.strip() for line in history.splitlines())
    first = next((line[len(_USER) :] for line in lines if line.startswith(_USER)), "")
    words = " ".join(first.split()[:_MAX_TITLE]).replace("*", "")
    return json.dumps({_TITLE: shorten(words, _MAX_TITLE, placeholder=" …") or "Chat"})
