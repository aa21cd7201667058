"""Finds the longest spans of a text that the documents hold word for word, by the suffix order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from knn_logits.arrays import Array, Ints
from knn_logits.errors import ModelError
from knn_logits.store.documents import DocumentRecord
from knn_logits.store.manifest import needs_text
from knn_logits.store.suffixes import suffix_order

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


def find_spans(quotes: Quotes, text: str, tokenizer: Any, least: int, documents: int) -> list[Span]:
    """See `Datastore.trace`."""
    found: dict[tuple[int, int], Span] = {}
    counted: set[tuple[int, tuple[int, ...]]] = set()
    # Inside a document the first word mostly follows a space, which is part of many tokens.
    for space in ("", " ") if text and not text[0].isspace() else ("",):
        ids, offsets = _cut(tokenizer, space + text)
        for first, end in quotes.longest(ids, min(least, len(ids))):
            place = max(0, offsets[first][0] - len(space)), offsets[end - 1][1] - len(space)
            if (place[1], tuple(ids[first:end])) in counted:
                continue
            counted.add((place[1], tuple(ids[first:end])))
            count, occurrences = quotes.occurrences(ids[first:end], documents)
            if place in found:
                count += found[place].count
                occurrences = (*found[place].occurrences, *occurrences)[:documents]
            found[place] = Span(*place, text[slice(*place)], end - first, count, occurrences)
    spans = sorted(found.values(), key=lambda span: (span.start, -span.end))
    inside = 0
    outer = []
    for span in spans:
        if span.end > inside:
            outer.append(span)
            inside = span.end
    return outer


def _cut(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Cuts a text into tokens, and returns the characters of each."""
    cut = tokenizer([text], add_special_tokens=False, split_special_tokens=True, verbose=False)
    if not getattr(cut, "encodings", None):
        raise ModelError("tracing a text needs a fast tokenizer, which tells each token's place")
    return cut["input_ids"][0], cut.encodings[0].offsets


class Quotes:
    """Finds strings of tokens in the documents that are not removed."""

    def __init__(self, store: Datastore) -> None:
        needs_text(store.manifest, store.folder, "a trace")
        self._tokens, self._documents = np.asarray(store.tokens), store.documents
        order: Any = store.suffixes
        if order is None:
            order = suffix_order(self._tokens, self._documents.first)
        # The place after the last token of each document: the suffix order has no such place.
        ends = self._documents.first + self._documents.length
        gone = store.manifest.removed
        if gone:
            order = order[~np.isin(self._owners(order), gone)]
            ends = np.delete(ends, gone)
        self._order, self._ends = order, ends

    def longest(self, ids: Sequence[int], least: int) -> Iterator[tuple[int, int]]:
        """Yields first and last (exclusive) token of each span that is in no longer one."""
        text = np.array(ids, np.int64)
        lengths = [self._longest_before(text, end) for end in range(1, len(ids) + 1)]
        for end, length in enumerate(lengths, 1):
            goes_on = end < len(ids) and lengths[end] > length
            if length >= max(1, least) and not goes_on:
                yield end - length, end

    def occurrences(self, ids: Sequence[int], documents: int) -> tuple[int, tuple[Occurrence, ...]]:
        """Counts a string of tokens, and names the first place in each of some documents."""
        text = np.array(ids, np.int64)
        low, high = (self._place(text, len(text), after=after) for after in (False, True))
        places = np.concatenate([self._order[low:high].astype(np.int64), self._at_ends(text)])
        starts = np.sort(places) - len(text)
        owners, first = np.unique(self._owners(starts + 1), return_index=True)
        listed = zip(owners[:documents].tolist(), starts[first].tolist(), strict=False)
        records = ((self._documents[number], start) for number, start in listed)
        return len(places), tuple(Occurrence(one, start - one.first) for one, start in records)

    def _owners(self, places: Array) -> Ints:
        """The document that holds the token before each place, int64 [places]."""
        tokens = np.asarray(places).astype(np.int64) - 1
        owners: Ints = np.searchsorted(self._documents.first, tokens, side="right") - 1
        return owners

    def _longest_before(self, text: Array, end: int) -> int:
        """The length of the longest string before `end` that a document holds."""
        place = self._place(text, end)
        near = self._order[max(0, place - 1) : place + 1].tolist()
        longest = max((self._common(one, text, end)[0] for one in near), default=0)
        wanted, found = text[:end], self._ends
        while longest < end and len(found := self._at_ends(wanted[-longest - 1 :], found)):
            longest += 1
        return longest

    def _at_ends(self, text: Array, ends: Array | None = None) -> Array:
        """The places after documents that end with a string of tokens."""
        ends = self._ends if ends is None else ends
        for back, token in enumerate(text[::-1].tolist(), 1):
            ends = ends[self._tokens[np.maximum(ends - back, 0)] == token]
            ends = ends[ends - back >= self._documents.first[self._owners(ends)]]
            if not len(ends):
                break
        return ends

    def _common(self, place: int, text: Array, end: int) -> tuple[int, int]:
        """How many tokens before a place and before `end` are the same, and the place's depth."""
        first = int(self._documents.first[self._owners(np.array([place]))[0]])
        most = min(place - first, end)
        theirs, ours = self._tokens[place - most : place], text[end - most : end]
        different = np.flatnonzero(theirs != ours)
        return (most - 1 - int(different[-1]) if len(different) else most), place - first

    def _place(self, text: Array, end: int, *, after: bool = False) -> int:
        """The first place of the order that is not below `text[:end]`, or that is beyond it."""

        def beyond(place: int) -> bool:
            common, depth = self._common(int(place), text, end)
            if common == end:
                return not after
            if common == depth:
                return False
            return bool(self._tokens[place - 1 - common] > text[end - 1 - common])

        return bisect_left(self._order, True, key=beyond)
