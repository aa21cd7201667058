"""Finds the longest spans of a text that the documents hold word for word."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from knn_logits.arrays import Array, Ints
from knn_logits.errors import ModelError
from knn_logits.store.documents import DocumentRecord, Documents
from knn_logits.store.manifest import needs_text

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore


@dataclass(frozen=True)
class Occurrence:
    """A place of a span in a document."""

    document: DocumentRecord
    token: int  # the span's first token, counted from 0 in the document


@dataclass(frozen=True)
class Span:
    """A span of a text that the documents hold, and that is in no longer one.

    Attributes:
        start: Its first character in the text.
        end: The character after its last.
        text: The span itself.
        tokens: Number of its tokens.
        count: How often the documents hold it.
        occurrences: The first occurrence in each of some documents, in their order.
    """

    start: int
    end: int
    text: str
    tokens: int
    count: int
    occurrences: tuple[Occurrence, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, for JSON, with the names and the places of the documents."""
        documents = []
        for one in self.occurrences:
            document, place = one.document.shown, one.document.place_at(one.token)
            uri = place.within(document.uri) if place else document.uri
            names = {"document": document.id, "title": document.title, "uri": uri}
            documents.append({**names, "place": place and place.name, "token": one.token})
        content = {name: getattr(self, name) for name in ("start", "end", "text", "tokens")}
        return {**content, "count": self.count, "documents": documents}


def find_spans(
    store: Datastore, text: str, tokenizer: Any, least: int, documents: int
) -> list[Span]:
    needs_text(store.manifest, store.folder, "a trace")
    # The number of tokens of each span, and the places of its first.
    found: dict[tuple[int, int], tuple[int, Ints]] = {}
    # Inside a document the first word mostly follows a space, which is part of many tokens.
    for space in ("", " ") if text and not text[0].isspace() else ("",):
        ids, offsets = _cut(tokenizer, space + text)
        for first, end, places in longest_spans(store, ids, least):
            place = max(0, offsets[first][0] - len(space)), offsets[end - 1][1] - len(space)
            _, others = found.get(place, (0, places))
            found[place] = end - first, np.union1d(others, places)
    outer: list[Span] = []
    for start, stop in sorted(found, key=lambda place: (place[0], -place[1])):
        if not outer or stop > outer[-1].end:
            tokens, places = found[start, stop]
            occurrences = _occurrences(store.documents, places, documents)
            outer.append(Span(start, stop, text[start:stop], tokens, len(places), occurrences))
    return outer


def _cut(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Cuts a text into tokens, and returns the characters of each."""
    cut = tokenizer([text], add_special_tokens=False, split_special_tokens=True, verbose=False)
    if not getattr(cut, "encodings", None):
        raise ModelError("tracing a text needs a fast tokenizer, which tells each token's place")
    return cut["input_ids"][0], cut.encodings[0].offsets


def longest_spans(
    store: Datastore, ids: Sequence[int], least: int
) -> Iterator[tuple[int, int, Ints]]:
    """Yields each span of tokens that is in no longer one: its ends, and its places, int64."""
    tokens, text, table = np.asarray(store.tokens), np.array(ids, np.int64), store.documents
    ends: Ints = table.first + table.length
    ends[list(store.manifest.removed)] = 0
    limit: Ints = np.repeat(ends, table.length)
    order = np.argsort(tokens, kind="stable")
    bounds = (np.searchsorted(tokens[order], text, side=side) for side in ("left", "right"))
    last = 0
    for first, (begin, stop) in enumerate(zip(*bounds, strict=True)):
        if last == len(text):
            return
        places = order[begin:stop]
        limits, end, before = limit[places], first, max(0, last - first)
        # A span that ends where one before it does is in that one.
        longer = places + before < limits
        longer[longer] = tokens[places[longer] + before] == text[first + before]
        while longer.any():
            places, limits, end = places[longer], limits[longer], end + 1
            longer = places + (end - first) < limits
            if end == len(text):
                break
            longer[longer] = tokens[places[longer] + (end - first)] == text[end]
        if end > last and end - first >= min(least, len(text)):
            yield first, end, places
            last = end


def runs_before(
    store: Datastore, positions: Array, before: Array, least: int
) -> list[tuple[int, int]]:
    """The positions with at least that many of some tokens before them, and how many."""
    tokens, documents = np.asarray(store.tokens), store.documents.first
    first = documents[documents.searchsorted(positions, side="right") - 1]
    lengths, active = np.zeros(len(positions), np.int64), np.arange(len(positions))
    for back in range(1, len(before) + 1):
        active = active[positions[active] - back >= first[active]]
        active = active[tokens[positions[active] - back] == before[-back]]
        if not len(active):
            break
        lengths[active] = back
    found = lengths >= least
    return list(zip(positions[found].tolist(), lengths[found].tolist(), strict=True))


def pairs_of(
    store: Datastore, ids: Array, most: int, without: Collection[str] = ()
) -> Iterator[tuple[int, int, int]]:
    """Yields the positions, in text and datastore, of the second token of pairs that both have.

    The third number is larger for rarer pairs. More than `most` occurrences count as none.
    """
    tokens, table = np.asarray(store.tokens), store.documents
    firsts = np.flatnonzero(np.isin(tokens[:-1], ids[:-1]))
    owners = table.first.searchsorted(firsts, side="right") - 1
    firsts = firsts[~np.isin(owners, list(store.left_out(without)))]
    pairs = tokens[firsts].astype(np.int64) << 32 | tokens[firsts + 1]
    order = np.argsort(pairs, kind="stable")
    wanted = ids[:-1].astype(np.int64) << 32 | ids[1:]
    bounds = (pairs[order].searchsorted(wanted, side=side) for side in ("left", "right"))
    for place, (begin, end) in enumerate(zip(*bounds, strict=True), 1):
        if end - begin <= most:
            for position in firsts[order[begin:end]].tolist():
                yield place, position + 1, most // int(end - begin)


def _occurrences(table: Documents, places: Ints, documents: int) -> tuple[Occurrence, ...]:
    """The first of some places, ascending, in each of some documents."""
    owners, first = np.unique(
        np.searchsorted(table.first, places, side="right") - 1, return_index=True
    )
    listed = zip(owners[:documents].tolist(), places[first].tolist(), strict=False)
    records = ((table[number], place) for number, place in listed)
    return tuple(Occurrence(record, place - record.first) for record, place in records)
