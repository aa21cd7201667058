"""The drawer shows a whole document and marks the passages that an answer took from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gradio as gr

from knn_logits import Datastore, Pieces
from knn_logits_app import layout, views
from knn_logits_app.requests import RequestError, text_of, whole
from knn_logits_app.session import friendly

if TYPE_CHECKING:
    from knn_logits_app.layout import Server

# The most tokens of a document that are shown, the most passages that are marked, and the most
# tokens of a passage.
_MOST_TOKENS, _MOST_PLACES, _LONGEST = 24_000, 500, 500
# Tokens that are decoded before a piece, since they decide how the piece begins.
_CONTEXT = 16


def add_drawer(server: Server) -> Any:
    """Adds the place on the page that shows a document."""
    del server
    return gr.HTML(
        "",
        html_template='<div class="kl-drawer-out"></div>',
        js_on_load="knnLogits.drawer(element, props, watch);",
        apply_default_css=False,
        elem_id="drawer",
    )


def connect(server: Server, output: Any, drawer: Any) -> None:
    """Lets an answer open documents.

    Args:
        server: The models and visitors.
        output: The place of the answer. It triggers the event "read".
        drawer: The place that `add_drawer` added.
    """

    def on_read(request: gr.Request, event: gr.EventData) -> str:
        try:
            return read_json(server, event._data, request.session_hash)
        except Exception as error:
            return views.message(friendly(error))

    output.read(on_read, outputs=[drawer], **layout.LIGHT)


def read_json(server: Server, content: Any, visitor: str | None) -> str:
    """Returns a document for the browser, as JSON.

    Args:
        server: The models and visitors.
        content: The request of a browser, which may be anything.
        visitor: The session of the visitor, whose own datastores may be read.

    Raises:
        RequestError: when the request makes no sense, or the document does not exist.
    """
    if not isinstance(content, dict):
        raise RequestError("The page sent a request that makes no sense: reload the page.")
    library = server.session.library(content.get("model"))
    known = {**library.stores, **server.visitors.stores(visitor)}
    name = content.get("store")
    store = known.get(name) if isinstance(name, str) else None
    if store is None:
        raise RequestError("There is no such datastore here (any more): choose another.")
    id = text_of(content.get("document"), "document")
    asked = content.get("places")
    if not isinstance(asked, list) or len(asked) > _MOST_PLACES:
        raise RequestError("The page sent a request that makes no sense: reload the page.")
    places = []
    for one in asked:
        if not isinstance(one, list) or len(one) != 2:
            raise RequestError("The page sent a request that makes no sense: reload the page.")
        entry = whole(one[0], "A place", 0, len(store) - 1)
        places.append((entry, whole(one[1], "A length", 1, _LONGEST)))
    found = document(store, library.tokenizer, id, places)
    # The number makes the value differ, so that the browser shows the same document again.
    found["turn"] = whole(content.get("turn"), "A turn", 0, 2**31)
    return json.dumps(found).replace("<", "\\u003c")


def document(
    store: Datastore, tokenizer: Any, id: str, places: list[tuple[int, int]]
) -> dict[str, Any]:
    """Returns a document's text in pieces, some of which are marked.

    Args:
        store: The datastore.
        tokenizer: The tokenizer of the datastore.
        id: The id of the document.
        places: The first entry and the number of tokens of each passage. The browser shows the
            first passage first.

    Raises:
        RequestError: when the datastore has no such document.
    """
    numbers = store.documents.numbers_of(id)
    if not numbers:
        raise RequestError("This document does not exist in the datastore: choose another.")
    spans = [(store.contexts.token_of(entry), length) for entry, length in places]
    at = store.documents.at_token(spans[0][0]) if spans else numbers[0]
    record = store.documents[at if at in numbers else numbers[0]]
    end = record.first + record.length
    shown = spans[0][0] if spans else record.first
    first = max(record.first, min(shown - _MOST_TOKENS // 2, end - _MOST_TOKENS))
    last = min(end, first + _MOST_TOKENS)
    inside = sorted({(a, min(a + n, last)) for a, n in spans if first <= a < last})
    special = set(getattr(tokenizer, "all_special_ids", ()))

    def text(begin: int, end: int) -> str:
        spans = (max(record.first, begin - _CONTEXT), begin), (begin, end)
        before, ids = (
            [one for one in store.tokens[first:last].tolist() if one not in special]
            for first, last in spans
        )
        return Pieces(tokenizer, before).add_all(ids)

    pieces: list[list[Any]] = []
    place, opened = first, 0
    for begin, stop in inside:
        if begin < place:
            continue
        pieces.append([text(place, begin), False])
        if begin == shown:
            opened = len(pieces)
        pieces.append([text(begin, stop), True])
        place = stop
    pieces.append([text(place, last), False])
    named = record.shown
    return {
        "store": store.name,
        "title": named.title or named.id,
        "uri": named.uri,
        "source": named.source,
        "pieces": [one for one in pieces if one[0]] if not opened else pieces,
        "opened": opened,
        "cut": [first > record.first, last < end],
    }
