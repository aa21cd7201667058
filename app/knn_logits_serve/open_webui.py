"""Adds the events of Open WebUI to OpenAI's interface, at the address /open-webui.

The server of Open WebUI passes chunks {"event": ...} on to its page. Each place in a document
becomes a source. A "[1]" behind a sentence with words of that place becomes a chip, and a folded
frame above the answer has the coloured words. The sources are known only after the words are
written. So the text with its numbers is sent again at the end, in an event of OpenAI's responses
interface, which Open WebUI accepts among the chunks of a chat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from textwrap import shorten
from typing import Any, TypeAlias

from knn_logits import Source
from knn_logits_app.requests import is_web
from knn_logits_app.views import chat_page
from knn_logits_serve.answers import Answer, AnswerPart, End, spans_of, within
from knn_logits_serve.bodies import ChatBody, GenerationRequest
from knn_logits_serve.messages import SIGN, Message
from knn_logits_serve.served import Served

# A datastore, a document, and a place in it as a title.
_Place: TypeAlias = tuple[str, str, str]
# Words get a number only if the document's share in them is at least this large.
_MIN_SHARE = 0.25
_MAX_PASSAGES = 4
# Label of the coloured words until they are opened, since the answer is below them.
_FOLDED = "Where each word comes from"
# The end of a sentence with the signs that close it, or the end of a line.
_CLOSING = re.compile(r"[.!?…][.!?…)\]*_\"'”’»]*|(?=\n)")
# The sign before each number marks it, so that it can be removed when the chat comes back.
_NUMBER = re.compile(f"{SIGN}\\[\\d+\\]")
# Open WebUI makes requests of its own after an answer, which begin with this line. The empty answer
# to each is listed by the field that the request wants.
_TASK = "### Task:"
_HISTORY, _HISTORY_END, _USER = "<chat_history>", "</chat_history>", "USER:"
_NOTHING: dict[str, Any] = {"follow_ups": [], "tags": [], "queries": [], "text": ""}
_TITLE = "title"
_MAX_TITLE = 50  # characters


class OpenWebUIAnswer(Answer):
    """The answer to a chat of Open WebUI, with events for its page in a stream."""

    def __init__(self, served: Served, request: GenerationRequest) -> None:
        super().__init__(request)
        self._served = served

    def chunks(self, part: AnswerPart) -> Iterable[dict[str, Any]]:
        """Yields the events for a part of an answer."""
        if isinstance(part, End) and part.answer is not None:
            for passage in part.answer.passages:
                listed = _listed(passage.store, passage.title, passage.uri, [passage.text])
                yield _event("source", listed)
        if isinstance(part, End) and part.trace is not None and self.request.n == 1:
            yield from self._sources(part)
        yield from super().chunks(part)

    def _sources(self, end: End) -> Iterable[dict[str, Any]]:
        sequence = within(end)
        if sequence is None or not sequence.tokens:
            return
        store = self._served.stores[self.request.stores[0]]
        page = chat_page(sequence, store.manifest.metric, _FOLDED)
        yield _event("embeds", {"embeds": [page]})
        spans = [span for span in spans_of(end) if span.source.document.share >= _MIN_SHARE]
        places: dict[_Place, list[Source]] = {}
        for span in spans:
            places.setdefault(_place(span.source), []).append(span.source)
        for sources in places.values():
            yield _event("source", _source(sources))
        if spans:
            numbers = {place: number for number, place in enumerate(places, 1)}
            text = numbered(end.text, [(span.end, numbers[_place(span.source)]) for span in spans])
            part = {"type": "output_text", "text": text}
            yield {"type": "response.content_part.done", "content_index": 0, "part": part}


def numbered(text: str, places: Sequence[tuple[int, int]]) -> str:
    """Puts numbers of sources behind the sentences in which their words end, at `places`."""
    ends: dict[int, list[int]] = {}
    for at, number in places:
        # The last of the words may be the sign that ends the sentence.
        end = _sentence_end(text, max(0, at - 1))
        numbers = ends.setdefault(len(text[:end].rstrip()), [])
        if number not in numbers:
            numbers.append(number)
    parts, last = [], 0
    for end, numbers in sorted(ends.items()):
        parts += [text[last:end], *(f"{SIGN}[{number}]" for number in numbers)]
        last = end
    return "".join([*parts, text[last:]])


def _sentence_end(text: str, at: int) -> int:
    ends = (match.end() for match in _CLOSING.finditer(text, at))
    return next((end for end in ends if text[end : end + 1].isspace()), len(text))


def _place(source: Source) -> _Place:
    """The datastore and the document of words, and their place in it as a title."""
    document, passage = source.document, source.neighbor
    title = None if passage is None else passage.title
    return document.store, document.document, title or document.title or document.document


def _source(sources: list[Source]) -> dict[str, Any]:
    """Describes a place in a document with its passages for Open WebUI's list of sources."""
    store, _, name = _place(sources[0])
    rows = [(source, source.neighbor) for source in sources if source.neighbor is not None]
    passages = [f"{row.before}{source.words}{source.after}" for source, row in rows[:_MAX_PASSAGES]]
    uri = rows[0][1].uri if rows else sources[0].document.uri
    shares = [round(source.document.share, 3) for source in sources[: len(passages) or 1]]
    return _listed(store, name, uri, passages or [name], distances=shares)


def _listed(
    store: str, name: str, uri: str | None, passages: list[str], **about: Any
) -> dict[str, Any]:
    """An entry of Open WebUI's list of sources, which its name distinguishes from others."""
    web = uri if is_web(uri) else ""
    metadata = {"source": web or f"{store}: {name}", "name": name}
    return {
        "source": {"name": name, "url": web, "id": metadata["source"]},
        "document": passages,
        "metadata": [metadata] * len(passages),
        **about,
    }


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
    history = task.partition(_HISTORY)[2].partition(_HISTORY_END)[0]
    lines = (line for line in history.splitlines() if line.strip().startswith(_USER))
    words = next((line.strip().removeprefix(_USER).split() for line in lines), []) or ["Chat"]
    title = " ".join(words[:_MAX_TITLE]).replace("*", "")
    return json.dumps({_TITLE: shorten(title, _MAX_TITLE, placeholder=" …")})
