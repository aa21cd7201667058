"""Finds the longest suffix of a text in the tokens of a datastore, and what follows it there."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.index.opening import hidden_entries
from knn_logits.search.neighbors import Occurrences, Prefixes
from knn_logits.store.datastore import Datastore
from knn_logits.store.manifest import needs_text
from knn_logits.store.suffixes import suffix_order

# If a suffix occurs more often, one occurrence stands for each token that follows it.
MOST_OCCURRENCES = 1024
# Number of last tokens that are compared as one number, and the bits of each.
_PACKED, _BITS = 3, 21
# Maximum number of places of a range whose next tokens are compared at once, and their number.
_NARROW, _RUN = 256, 32


class SuffixIndex:
    """Finds the longest suffix of a text in a datastore, which is sorted if it has no index."""

    def __init__(self, store: Datastore, without: Array | None = None) -> None:
        needs_text(store.manifest, store.folder, "the ∞-gram")
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
        # The places of the suffixes in their order, and the tokens before each.
        self._order = np.asarray(order)
        self._packed = self._packed_before(self._order)
        self._hide(hidden_entries(store, without))

    def _hide(self, hidden: Array) -> None:
        """Leaves out some entries."""
        if len(hidden):
            shown = np.ones(self._size, bool)
            shown[hidden] = False
            stays = shown[self._entries(self._order)]
            self._order, self._packed = self._order[stays], self._packed[stays]

    def without(self, hidden: Array) -> SuffixIndex:
        """Returns the same index without some more entries, int64 [hidden]."""
        other = copy.copy(self)
        other._hide(hidden)
        return other

    def _entries(self, places: Array) -> Array:
        """Returns the entries of the tokens at some places, int64."""
        return places.astype(np.int64) - np.searchsorted(self._first, places, side="right")

    def entries(self, low: int, high: int) -> Array:
        """Returns the entries of a range of the suffix order, int64 [high - low]."""
        return self._entries(self._order[low:high])

    def _packed_before(self, places: Array) -> Array:
        """The last tokens before some places as one number each, in the order of suffixes."""
        packed = np.zeros(len(places), np.int64)
        inside = np.ones(len(places), bool)
        for back in range(_PACKED):
            tokens = self._before[np.maximum(places.astype(np.int64) - back, 0)]
            inside &= tokens >= 0
            packed = (packed << _BITS) | np.where(inside, tokens + 1, 0)
        return packed

    def ranges(self, prefixes: Prefixes) -> tuple[Array, Array, Array]:
        """First and last (exclusive) place of each text's longest suffix, and its length."""
        rows = np.arange(len(prefixes))
        # Each row's last tokens, and how many of them are tokens of the corpus.
        tokens = self._token_before(prefixes, rows, np.arange(_PACKED)[:, None])
        known = np.logical_and.accumulate((tokens >= 0) & (tokens < self._vocabulary))
        shifts = _BITS * np.arange(_PACKED - 1, -1, -1)[:, None]
        patterns = np.cumsum(np.where(known, tokens.astype(np.int64) + 1, 0) << shifts, axis=0)
        left, right = np.searchsorted(self._packed, [patterns, patterns + (1 << shifts)])
        lengths = ((right > left) & known).sum(axis=0)
        place = np.maximum(lengths - 1, 0)
        low = np.where(lengths, left[place, rows], 0)
        high = np.where(lengths, right[place, rows], 0)
        active = np.flatnonzero(lengths == _PACKED)
        while len(active):
            wide = high[active] - low[active] > _NARROW
            active = np.concatenate(
                [
                    self._one_more(prefixes, active[wide], low, high, lengths),
                    self._many_more(prefixes, active[~wide], low, high, lengths),
                ]
            )
        return low, high, lengths

    def _one_more(
        self, prefixes: Prefixes, rows: Array, low: Array, high: Array, lengths: Array
    ) -> Array:
        """Narrows ranges by the next token, and returns the rows that have such a range."""
        if not len(rows):
            return rows
        tokens = self._token_before(prefixes, rows, lengths[rows])
        rows, tokens = rows[tokens >= 0], tokens[tokens >= 0]
        ranges = low[rows], high[rows], lengths[rows]
        left, right = self._bisected(*ranges, tokens), self._bisected(*ranges, tokens + 1)
        found = right > left
        rows = rows[found]
        low[rows], high[rows] = left[found], right[found]
        lengths[rows] += 1
        return rows

    def _many_more(
        self, prefixes: Prefixes, rows: Array, low: Array, high: Array, lengths: Array
    ) -> Array:
        """Narrows ranges by the next tokens, and returns the rows that may have still more."""
        if not len(rows):
            return rows
        counts = high[rows] - low[rows]
        first = np.cumsum(counts) - counts
        row_of, inside = _spread(np.arange(len(rows)), counts)
        places = self._order[low[rows][row_of] + inside].astype(np.int64)
        steps = np.arange(_RUN)
        ends = prefixes.end[rows] - 1 - lengths[rows]
        wanted = ends[:, None] - steps
        tokens = prefixes.tokens[np.maximum(wanted, 0)]
        # A negative number is no token. Tokens before a document's beginning are compared too, but
        # the -1 there ends the run.
        tokens = np.where((wanted >= prefixes.first[rows, None]) & (tokens >= 0), tokens, -2)
        before = (places - lengths[rows][row_of])[:, None] - steps
        same = self._before[np.maximum(before, 0)] == tokens[row_of]
        runs = np.where(same.all(axis=1), _RUN, same.argmin(axis=1))
        longest = np.maximum.reduceat(runs, first)
        # In their order, the places with the longest common suffix are neighbors.
        best = np.flatnonzero(runs == longest[row_of])
        edges = np.searchsorted(best, np.append(first, len(runs)))
        low[rows], high[rows] = (
            low[rows] + best[edges[:-1]] - first,
            low[rows] + best[edges[1:] - 1] - first + 1,
        )
        lengths[rows] += longest
        unfinished: Array = rows[longest == _RUN]
        return unfinished

    @staticmethod
    def _token_before(prefixes: Prefixes, rows: Array, lengths: Array | int) -> Array:
        """Returns the token before the last `lengths` tokens of some texts; -1 for none."""
        places = prefixes.end[rows] - 1 - lengths
        inside = places >= prefixes.first[rows]
        tokens: Array = np.where(inside, prefixes.tokens[np.where(inside, places, 0)], -1)
        return tokens

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

    def find(
        self, prefixes: Prefixes, first_entry: int = 0, *, most: int | None = None
    ) -> Occurrences:
        """The longest suffixes' occurrences, or one of each token that follows with its share.

        With `most`, a suffix that occurs more often keeps its length, and has no occurrences.
        """
        low, high, lengths = self.ranges(prefixes)
        counts = high - low
        if most is not None:
            counts[counts > most] = 0
        few = np.flatnonzero((counts > 0) & (counts <= MOST_OCCURRENCES))
        many = np.flatnonzero(counts > MOST_OCCURRENCES).tolist()
        by_token = [self._by_token(int(low[row]), int(high[row])) for row in many]
        width = max([0, *counts[few].tolist(), *(len(entries) for entries, _, _ in by_token)])
        ids = np.full((len(counts), width), -1, np.int64)
        values = np.zeros((len(counts), width), np.int64)
        logs = np.full((len(counts), width), -np.inf, np.float32)
        rows, columns = _spread(few, counts[few])
        places = self._order[low[rows] + columns]
        ids[rows, columns], values[rows, columns] = self._entries(places), self._tokens[places]
        logs[rows, columns] = -np.log(counts[rows])
        for row, (entries, tokens, weights) in zip(many, by_token, strict=True):
            end = len(entries)
            ids[row, :end], values[row, :end], logs[row, :end] = entries, tokens, weights
        ids[ids >= 0] += first_entry
        arrays = map(torch.from_numpy, (ids, values, logs, lengths, counts))
        zeros = torch.zeros(3, len(counts), dtype=torch.float32)
        return Occurrences(*arrays, *zeros)

    def _by_token(self, low: int, high: int) -> tuple[Array, Array, Array]:
        """An occurrence of each token that follows a range, and the token's log share in it."""
        places = self._order[low:high]
        tokens, first, counts = np.unique(
            self._tokens[places], return_index=True, return_counts=True
        )
        shares = np.log(counts / (high - low)).astype(np.float32)
        return self._entries(places[first]), tokens, shares


def _spread(rows: Array, counts: Array) -> tuple[Array, Array]:
    """Repeats each row `counts` times, and numbers its repetitions from 0."""
    first = np.cumsum(counts) - counts
    return np.repeat(rows, counts), np.arange(counts.sum()) - np.repeat(first, counts)
