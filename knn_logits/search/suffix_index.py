"""Finds the longest suffix of a text in the tokens of a datastore, and what follows it there."""

from __future__ import annotations

import copy
from bisect import bisect_left
from typing import Any

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.errors import DatastoreError
from knn_logits.index.opening import hidden_entries
from knn_logits.locks import Recent
from knn_logits.search.occurrences import Occurrences, Prefixes
from knn_logits.store.datastore import Datastore
from knn_logits.store.manifest import needs_text
from knn_logits.store.suffixes import suffix_order

# A suffix that occurs more often is represented by a sample of this many occurrences.
MOST_OCCURRENCES = 1024
# How many of these samples are kept in memory.
_CACHED = 128
# Up to this many numbers are compared directly, which is faster than a bisection.
_LOOKED_AT = 1 << 16
# Once `_LONG` tokens match, the text probably copies the corpus. Then the next `_RUN` tokens are
# compared at once.
_LONG, _RUN = 4, 32
# So few texts are looked up one by one, which is faster than arrays of a few numbers.
_FEW, _LONG_RUN = 16, 256


def check_suffixes(store: Datastore, *, make: bool = False) -> None:
    """Refuses a datastore without a suffix index, or only one without a text to make it of."""
    needs_text(store.manifest, store.folder, "the ∞-gram")
    if store.suffixes is None and not make:
        raise DatastoreError(
            f"{store.folder} has no suffix index, which the ∞-gram needs: build it with "
            f"`knn-logits index {store.folder} --suffixes`"
        )


class SuffixIndex:
    """Finds the longest suffix of a text in a datastore; `make` sorts one that has no index."""

    def __init__(
        self, store: Datastore, without: Array | None = None, *, make: bool = False
    ) -> None:
        check_suffixes(store, make=make)
        tokens = np.asarray(store.tokens)
        order: Any = store.suffixes
        if order is None:
            order = suffix_order(tokens, store.documents.first)
        # The token before each place; -1 at the beginning of a document.
        self._before = np.empty(len(tokens), np.int32)
        self._before[1:] = tokens[:-1]
        self._before[store.documents.first] = -1
        self._tokens = tokens
        self._first = store.contexts.first
        self._vocabulary = int(tokens.max(initial=-1)) + 1
        self._size = len(store)
        self._sort(self._shown(np.asarray(order), hidden_entries(store, without)))

    def _sort(self, order: Array) -> None:
        """Takes the places of the suffixes in their order."""
        self._order = order
        counts = np.bincount(self._before[order], minlength=self._vocabulary)
        self._bounds = np.concatenate([[0], np.cumsum(counts)])
        self._samples: Recent[tuple[int, int], tuple[Array, Array, Array]] = Recent(_CACHED)

    def _shown(self, order: Array, hidden: Array) -> Array:
        """The order without hidden entries."""
        if not len(hidden):
            return order
        shown = np.ones(self._size, bool)
        shown[hidden] = False
        return order[shown[self._entries(order)]]

    def without(self, hidden: Array) -> SuffixIndex:
        """Returns the same index without some more entries, int64 [hidden]."""
        other = copy.copy(self)
        other._sort(self._shown(self._order, hidden))
        return other

    def _entries(self, places: Array) -> Array:
        """Returns the entries of the tokens at some places, int64."""
        return places.astype(np.int64) - np.searchsorted(self._first, places, side="right")

    def entries(self, low: int, high: int) -> Array:
        """Returns the entries of a range of the suffix order, int64 [high - low]."""
        return self._entries(self._order[low:high])

    def ranges(self, prefixes: Prefixes) -> tuple[Array, Array, Array]:
        """First and last (exclusive) place of each text's longest suffix, and its length."""
        rows = len(prefixes)
        if rows <= _FEW:
            ends = zip(prefixes.first.tolist(), prefixes.end.tolist(), strict=True)
            few = [self._range(prefixes.tokens[first:end]) for first, end in ends]
            low, high, lengths = np.array(few, np.int64).reshape(rows, 3).T.copy()
            return low, high, lengths
        low, high, lengths = (np.zeros(rows, np.int64) for _ in range(3))
        last = self._token_before(prefixes, np.arange(rows), lengths)
        occurring = np.flatnonzero((last >= 0) & (last < self._vocabulary))
        low[occurring] = self._bounds[last[occurring]]
        high[occurring] = self._bounds[last[occurring] + 1]
        active = occurring[high[occurring] > low[occurring]]
        high[high <= low] = low[high <= low]
        lengths[active] = 1
        while len(active):
            tokens = self._token_before(prefixes, active, lengths)
            active, tokens = active[tokens >= 0], tokens[tokens >= 0]
            if not len(active):
                break
            left, right = self._narrowed(low[active], high[active], lengths[active], tokens)
            nonempty = right > left
            active = active[nonempty]
            low[active], high[active] = left[nonempty], right[nonempty]
            lengths[active] += 1
            deep = active[lengths[active] >= _LONG]
            if len(deep):
                lengths[deep] += self._run(prefixes, deep, low, high, lengths)
        return low, high, lengths

    def _range(self, text: Array) -> tuple[int, int, int]:
        """What `ranges` finds for one text."""
        last = int(text[-1]) if len(text) else -1
        if not 0 <= last < self._vocabulary:
            return 0, 0, 0
        low, high, length = int(self._bounds[last]), int(self._bounds[last + 1]), 1
        if low == high:
            return low, high, 0
        while length < len(text):
            rest = text[: len(text) - length]
            if length >= _LONG and (run := self._run_of(rest, low, high, length)):
                length += run
                continue
            token = int(rest[-1])

            def preceding(place: int, length: int = length) -> int:
                return int(self._before[self._order[place] - length])

            left = bisect_left(range(high), token, low, high, key=preceding)
            if token < 0 or left == high or preceding(left) != token:
                break
            low, high = left, bisect_left(range(high), token + 1, left, high, key=preceding)
            length += 1
        return low, high, length

    def _run_of(self, rest: Array, low: int, high: int, length: int) -> int:
        """Counts how many of the last tokens of a text stand before all places of a range."""
        edges = [int(self._order[place]) - length + 1 for place in (low, high - 1)]
        most = min(_LONG_RUN, len(rest), *edges)
        tokens = rest[len(rest) - most :]
        same = tokens >= 0
        for end in edges:
            same &= self._before[end - most : end] == tokens
        return most if same.all() else int(same[::-1].argmin())

    @staticmethod
    def _token_before(prefixes: Prefixes, rows: Array, lengths: Array) -> Array:
        """Returns the token before the last `lengths` tokens of each text, int64; -1 for none."""
        places = prefixes.end[rows] - 1 - lengths[rows]
        inside = places >= prefixes.first[rows]
        tokens: Array = np.where(inside, prefixes.tokens[np.where(inside, places, 0)], -1)
        return tokens

    def _narrowed(
        self, low: Array, high: Array, lengths: Array, tokens: Array
    ) -> tuple[Array, Array]:
        """Narrows each range to the occurrences that `tokens` precede."""
        widest = int((high - low).max())
        if widest * len(low) <= _LOOKED_AT:
            columns = low[:, None] + np.arange(widest)
            inside = columns < high[:, None]
            places = self._order[np.where(inside, columns, 0)].astype(np.int64)
            preceding = self._before[np.where(inside, places - lengths[:, None], 0)]
            less = ((preceding < tokens[:, None]) & inside).sum(axis=1)
            same = ((preceding == tokens[:, None]) & inside).sum(axis=1)
            return low + less, low + less + same
        return (
            self._bisected(low, high, lengths, tokens),
            self._bisected(low, high, lengths, tokens + 1),
        )

    def _bisected(self, low: Array, high: Array, lengths: Array, tokens: Array) -> Array:
        """The first place of each range whose preceding token is not below that of `tokens`."""
        low, high = low.copy(), high.copy()
        open_ = np.flatnonzero(low < high)
        while len(open_):
            middle = (low[open_] + high[open_]) // 2
            preceding = self._before[self._order[middle].astype(np.int64) - lengths[open_]]
            less = preceding < tokens[open_]
            low[open_[less]] = middle[less] + 1
            high[open_[~less]] = middle[~less]
            open_ = open_[low[open_] < high[open_]]
        return low

    def _run(
        self, prefixes: Prefixes, rows: Array, low: Array, high: Array, lengths: Array
    ) -> Array:
        """How many more tokens the ends of a sorted range, and so all in it, share with a text."""
        steps = np.arange(_RUN)
        places = prefixes.end[rows, None] - 1 - lengths[rows, None] - steps
        inside = places >= prefixes.first[rows, None]
        tokens = np.where(inside, prefixes.tokens[np.where(inside, places, 0)], -1)
        same = tokens >= 0
        for edge in (low[rows], high[rows] - 1):
            places_before = (
                self._order[edge].astype(np.int64)[:, None] - lengths[rows, None] - steps
            )
            # Tokens before a document's beginning are compared too, but the -1 there ends the run.
            same &= self._before[np.maximum(places_before, 0)] == tokens
        return np.where(same.all(axis=1), _RUN, np.argmin(same, axis=1))

    def find(self, prefixes: Prefixes, first_entry: int = 0) -> Occurrences:
        """The longest suffixes' occurrences, or samples of them with exact shares of tokens."""
        low, high, lengths = self.ranges(prefixes)
        counts = high - low
        listed = [self._listed(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
        width = max((len(row[0]) for row in listed), default=0)
        ids = np.full((len(listed), width), -1, np.int64)
        values = np.zeros((len(listed), width), np.int64)
        logs = np.full((len(listed), width), -np.inf, np.float32)
        for row, (entries, tokens, weights) in enumerate(listed):
            end = len(entries)
            ids[row, :end], values[row, :end], logs[row, :end] = entries, tokens, weights
        ids[ids >= 0] += first_entry
        return Occurrences(
            torch.from_numpy(ids),
            torch.from_numpy(values),
            torch.from_numpy(logs),
            torch.from_numpy(lengths),
            torch.from_numpy(counts),
            *(torch.zeros(len(listed), dtype=torch.float32) for _ in range(3)),
        )

    def _listed(self, low: int, high: int) -> tuple[Array, Array, Array]:
        """Returns the entries, tokens and log weights of a range."""
        count = high - low
        if count <= MOST_OCCURRENCES:
            places = self._order[low:high]
            weights = np.full(count, -np.log(max(1, count)), np.float32)
            return self._entries(places), self._tokens[places], weights
        if cached := self._samples.take([(low, high)]):
            return cached[low, high]
        sample = self._sampled(low, high)
        self._samples.keep({(low, high): sample})
        return sample

    def _sampled(self, low: int, high: int) -> tuple[Array, Array, Array]:
        # At least one occurrence of each token that follows, and others evenly spread.
        count = high - low
        tokens = self._tokens[self._order[low:high]]
        counts = np.bincount(tokens, minlength=self._vocabulary)
        first_place = np.full(self._vocabulary, -1, np.int64)
        first_place[tokens[::-1]] = np.arange(count - 1, -1, -1)
        spread = np.arange(MOST_OCCURRENCES) * count // MOST_OCCURRENCES
        chosen = np.union1d(first_place[first_place >= 0], spread)
        sampled = tokens[chosen]
        listed = np.bincount(sampled, minlength=self._vocabulary)
        weights = np.log(counts[sampled] / listed[sampled] / count).astype(np.float32)
        return self._entries(self._order[low + chosen]), sampled, weights
