"""The drawer shows a whole document and marks the passages that an answer took from it."""

from __future__ import annotations

from typing import Annotated, Any

import gradio as gr
from pydantic import BaseModel, Field

from knn_logits import Datastore
from knn_logits.hosting import Pieces
from knn_logits_app import page_parts, views
from knn_logits_app.page_parts import Server
from knn_logits_app.requests import RequestError, content_of, friendly
from knn_logits_app.views import json_text

# The most tokens of a document that are shown, the most passages that are marked, and the most
# tokens of a passage.
_MOST_TOKENS, _MOST_PLACES, _MAX_SPAN = 24_000, 500, 500
# Tokens that are decoded before a piece, since they decide how the piece begins.
_CONTEXT = 16


def connect(server: Server, answers: Any, drawer: Any) -> None:
    """Lets a place of answers, which triggers the event "read", open documents."""

    def on_read(request: gr.Request, event: gr.EventData) -> str:
        try:
            return read_json(server, event._data, request.session_hash)
        except Exception as error:
            return views.message(friendly(error))

    answers.read(on_read, outputs=[drawer], **page_parts.LIGHT)


class _Reading(BaseModel):
    """A request for a document, with the places to mark."""

    store: str
    document: str
    places: Annotated[list[tuple[int, int]], Field(max_length=_MOST_PLACES)]  # entry, length
    passages: Annotated[list[tuple[int, int]], Field(max_length=1)] = Field([])  # in tokens
    turn: int


def read_json(server: Server, content: Any, visitor: str | None) -> str:
    """Returns a document for the browser, as JSON."""
    asked, library = content_of(_Reading, content), server.session.library
    store = {**library.stores, **server.visitors.stores(visitor)}.get(asked.store)
    if store is None:
        raise RequestError("This datastore is not available (any more): choose another.")
    spans = []
    for entry, length in asked.places:
        if not (0 <= entry < len(store) and 0 < length <= _MAX_SPAN):
            raise RequestError("This place does not exist in the datastore.")
        spans.append((store.contexts.token_of(entry), length))
    # A passage that was read has a place in the tokens, and no entry may stand at its beginning.
    for first, end in asked.passages:
        if not 0 <= first < end <= len(store.tokens):
            raise RequestError("This place does not exist in the datastore.")
        spans.append((first, min(end - first, _MAX_SPAN)))
    pieces = document(store, library.tokenizer, asked.document, spans)
    # The number makes the value differ, so that the browser shows the same document again.
    return json_text({**pieces, "turn": asked.turn})


def document(
    store: Datastore, tokenizer: Any, name: str, spans: list[tuple[int, int]]
) -> dict[str, Any]:
    """Returns a document's text in pieces; the spans, each a token and a length, are marked."""
    numbers = store.documents.named(name)
    if not numbers:
        raise RequestError("This document does not exist in the datastore: choose another.")
    number = store.documents.at_token(spans[0][0]) if spans else numbers[0]
    record = store.documents[number if number in numbers else numbers[0]]
    end = record.first + record.length
    target = spans[0][0] if spans else record.first
    first = max(record.first, min(target - _MOST_TOKENS // 2, end - _MOST_TOKENS))
    last = min(end, first + _MOST_TOKENS)
    special = set(getattr(tokenizer, "all_special_ids", ()))

    def ids(begin: int, stop: int) -> list[int]:
        return [token for token in store.tokens[begin:stop].tolist() if token not in special]

    def text(begin: int, stop: int) -> str:
        before = ids(max(record.first, begin - _CONTEXT), begin)
        return Pieces(tokenizer, before).add_all(ids(begin, stop))

    shown, pieces = record.shown, list[list[Any]]()
    place, opened = first, 0
    for begin, stop in sorted({(a, min(a + n, last)) for a, n in spans if first <= a < last}):
        if begin < place:
            continue
        pieces.append([text(place, begin), False])
        if begin == target:
            opened = len(pieces)
        at = record.place_at(begin - record.first)
        # A paragraph has the place of its first line, which is no place of the passage.
        name = at.name if at and not at.name.startswith("line ") else ""
        pieces.append([text(begin, stop), True, name, at.within(shown.uri) if at else shown.uri])
        place = stop
    pieces.append([text(place, last), False])
    return {
        "store": store.name,
        "title": shown.title or shown.id,
        "uri": shown.uri,
        "pieces": pieces if opened else [piece for piece in pieces if piece[0]],
        "opened": opened,
        "cut": [first > record.first, last < end],
    }
