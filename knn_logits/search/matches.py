"""Finds the longest verbatim match of a text in datastores, and what follows it: the ∞-gram."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.index.opening import Indexes, hidden_entries
from knn_logits.search.neighbors import Occurrences, Prefixes, joined_occurrences
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.manifest import needs_text
from knn_logits.store.suffixes import suffix_order

# If a suffix occurs more often, one occurrence stands for each token that follows it.
MOST_OCCURRENCES = 1024
# Number of last tokens that are compared as one number, and the bits of each.
_PACKED, _BITS = 3, 21
# Maximum number of places of a range whose next tokens are compared at once, and their number.
_NARROW, _RUN = 256, 32
# The number of last tokens of a document that are looked up at once, and the maximum number that
# are compared.
_TAIL_TOKENS, _MAX_TAIL = 4, 256
# The share of the ∞-gram by its minimum number of tokens. The shares lie between
# those that are best for PEPs and for WikiText-2 (docs/research/infini-gram.md).
_LENGTHS = (1, 2, 3, 4, 5, 7, 9, 13)
_SHARES = (0.02, 0.2, 0.22, 0.25, 0.28, 0.35, 0.5, 0.7)


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
        self.order = np.asarray(order)
        self._packed = self._packed_before(self.order)
        self._hide(hidden_entries(store, without))

    def _hide(self, hidden: Array) -> None:
        if len(hidden):
            shown = np.ones(self._size, bool)
            shown[hidden] = False
            stays = shown[self.entries(self.order)]
            self.order, self._packed = self.order[stays], self._packed[stays]

    def without(self, hidden: Array) -> SuffixIndex:
        """Returns the same index without some more entries, int64 [hidden]."""
        other = copy.copy(self)
        other._hide(hidden)
        return other

    def entries(self, places: Array) -> Array:
        """Returns the entries of the tokens at some places, int64."""
        return places.astype(np.int64) - np.searchsorted(self._first, places, side="right")

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
        places = self.order[low[rows][row_of] + inside].astype(np.int64)
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
            preceding = self._before[self.order[middle].astype(np.int64) - lengths[open_]]
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
        width, by_token = int(counts[few].max(initial=0)), {}
        for row in np.flatnonzero(counts > MOST_OCCURRENCES).tolist():
            by_token[row] = self._by_token(int(low[row]), int(high[row]))
            width = max(width, len(by_token[row][0]))
        ids = np.full((len(counts), width), -1, np.int64)
        values = np.zeros((len(counts), width), np.int64)
        logs = np.full((len(counts), width), -np.inf, np.float32)
        rows, columns = _spread(few, counts[few])
        places = self.order[low[rows] + columns]
        ids[rows, columns], values[rows, columns] = self.entries(places), self._tokens[places]
        logs[rows, columns] = -np.log(counts[rows])
        for row, (entries, tokens, weights) in by_token.items():
            end = len(entries)
            ids[row, :end], values[row, :end], logs[row, :end] = entries, tokens, weights
        ids[ids >= 0] += first_entry
        arrays = map(torch.from_numpy, (ids, values, logs, lengths, counts))
        return Occurrences(*arrays, *torch.zeros(3, len(counts), dtype=torch.float32))

    def _by_token(self, low: int, high: int) -> tuple[Array, Array, Array]:
        """An occurrence of each token that follows a range, and the token's log share in it."""
        places = self.order[low:high]
        tokens, first, counts = np.unique(
            self._tokens[places], return_index=True, return_counts=True
        )
        shares = np.log(counts / (high - low)).astype(np.float32)
        return self.entries(places[first]), tokens, shares


def _spread(rows: Array, counts: Array) -> tuple[Array, Array]:
    """Repeats each row `counts` times, and numbers its repetitions from 0."""
    first = np.cumsum(counts) - counts
    return np.repeat(rows, counts), np.arange(counts.sum()) - np.repeat(first, counts)


class Matches:
    """Finds entries after the longest suffix of a text that occurs in the datastores."""

    def __init__(
        self,
        suffixes: Sequence[tuple[SuffixIndex, int]],  # with the number of each one's first entry
        counts: Sequence[Array],  # of each token in each datastore, int64 [vocabulary]
        tails: Sequence[tuple[_Tails, int]] = (),  # as `suffixes`
        end_token: int = 0,  # which follows the end of a document
        most: int | None = None,  # a suffix that occurs more often in a datastore is no match
    ) -> None:
        self._suffixes, self._tails, self._end_token = suffixes, tails, end_token
        self._most = most
        self._rarity = _rarities(counts)

    @classmethod
    def of_stores(
        cls,
        stores: Sequence[Datastore],
        indexes: Indexes,
        exclude: tuple[str, ...] = (),
        *,
        only: int | None = None,
        end_token: int | None = None,
        most: int | None = None,
    ) -> Matches:
        """Opens the matches of datastores, or of number `only`, without documents `exclude`.

        Without `end_token` the ends of documents do not count.
        """
        suffixes: list[tuple[SuffixIndex, int]] = []
        counts: list[Array] = []
        tails: list[tuple[_Tails, int]] = []
        first = 0
        for number, store in enumerate(stores):
            if store.manifest.learned is None and only in (None, number):
                without = store.entries_of(exclude) if exclude else None
                index = partial(SuffixIndex, store, without)
                suffixes.append((indexes.once(store, ("suffixes", exclude), index), first))
                count = partial(np.bincount, np.asarray(store.tokens))
                counts.append(indexes.once(store, "token counts", count))
                if end_token is not None:
                    ends = partial(_Tails, store, without)
                    tails.append((indexes.once(store, ("tails", exclude), ends), first))
            first += len(store)
        return cls(suffixes, counts, tails, end_token or 0, most)

    def find(self, prefixes: Prefixes) -> Occurrences:
        """Finds the occurrences of the longest suffix of each text, with share 0.

        At the end of a document that ends like the text, `end_token` follows its last entry.
        """
        if not self._suffixes:
            return Occurrences.none(len(prefixes))
        parts = [index.find(prefixes, first, most=self._most) for index, first in self._suffixes]
        found = parts[0] if len(parts) == 1 else joined_occurrences(parts)
        for row in range(len(prefixes)) if self._tails else ():
            text = prefixes.tokens[prefixes.first[row] : prefixes.end[row]]
            tail = tuple(text[-_TAIL_TOKENS:].tolist())
            for tails, _ in self._tails:
                if tail in tails.places:
                    found = self._ended(found, row, text, tail)
                    break
        # A suffix that occurs too often is no match, and no shorter one takes its place.
        lengths = np.where(found.counts.numpy() > 0, found.lengths.numpy(), 0)
        # Padding before a text is no part of it.
        read = np.concatenate([[0], np.cumsum(prefixes.tokens >= 0)])
        coverage = lengths / np.maximum(1, read[prefixes.end] - read[prefixes.first])
        rows = np.repeat(np.arange(len(lengths)), lengths)
        last = np.repeat(prefixes.end - np.cumsum(lengths), lengths) + np.arange(len(rows))
        rarity = np.bincount(rows, self._rarity[prefixes.tokens[last]], len(lengths))
        return replace(
            found,
            lengths=torch.from_numpy(lengths),
            coverage=torch.from_numpy(coverage.astype(np.float32)),
            rarity=torch.from_numpy(rarity.astype(np.float32)),
        )

    def _ended(
        self, found: Occurrences, row: int, text: Array, tail: tuple[int, ...]
    ) -> Occurrences:
        """Lets the end token follow the documents that end with more of a text than occurs."""
        length = best = int(found.lengths[row])
        entries: list[int] = []
        for tails, first in self._tails:
            for entry, longest in tails.ending(text, tail, length):
                if longest > best:
                    best, entries = longest, []
                if longest == best:
                    entries.append(entry + first)
        if not entries:
            return found
        padded = found.padded(max(found.ids.shape[1], len(entries)))
        changed = Occurrences(*(one.clone() for one in padded.tensors()))
        changed.ids[row], changed.values[row], changed.log_weights[row] = -1, 0, -np.inf
        place = slice(len(entries))
        changed.ids[row, place] = torch.tensor(entries)
        changed.values[row, place] = self._end_token
        changed.log_weights[row, place] = -float(np.log(len(entries)))
        changed.lengths[row], changed.counts[row] = best, len(entries)
        return changed


class InfiniGram:
    """The ∞-gram of one or several datastores, which are read as one corpus.

    p(y) = count(suffix y) / count(suffix), of the longest suffix. Liu et al. (2024).
    """

    def __init__(self, stores: Sequence[Datastore], config: KNNConfig, indexes: Indexes) -> None:
        self._matches = Matches.of_stores(stores, indexes, config.exclude)
        given = config.infini_gram
        # Ascending lengths, the share below all lengths, and that from each on.
        lengths, shares = (_LENGTHS, _SHARES) if given == "auto" else ((1,), (float(given or 0.0),))
        self._lengths, self._shares = torch.tensor(lengths), torch.tensor([0.0, *shares])

    def find(self, prefixes: Prefixes) -> Occurrences:
        found = self._matches.find(prefixes)
        places = torch.bucketize(found.lengths, self._lengths, right=True)
        return replace(found, shares=self._shares[places])


def _rarities(counts: Sequence[Array]) -> Array:
    """-ln of each token's frequency, float32 [vocabulary of the corpus]."""
    total = np.zeros(max(1, *map(len, counts)) if counts else 1, np.int64)
    for part in counts:
        total[: len(part)] += part
    rarity: Array = -np.log(np.maximum(total, 1) / max(1, total.sum())).astype(np.float32)
    return rarity


class _Tails:
    """The ends of a datastore's documents, without those that are left out."""

    def __init__(self, store: Datastore, without: Array | None) -> None:
        self._tokens = np.asarray(store.tokens)
        first, length = np.asarray(store.documents.first), np.asarray(store.documents.length)
        # Documents that were joined do not end.
        long = (length > _TAIL_TOKENS) & (not store.manifest.windows.concatenate)
        self._first, self._end = first[long], (first + length)[long]
        self._entries = self._end - 2 - np.flatnonzero(long)
        shown = ~np.isin(self._entries, hidden_entries(store, without))
        self._first, self._end = self._first[shown], self._end[shown]
        self._entries = self._entries[shown]
        # The documents by their last tokens.
        self.places: dict[tuple[int, ...], list[int]] = {}
        last = self._tokens[self._end[:, None] - np.arange(_TAIL_TOKENS, 0, -1)]
        for place, tail in enumerate(map(tuple, last.tolist())):
            self.places.setdefault(tail, []).append(place)

    def ending(self, text: Array, tail: tuple[int, ...], length: int) -> Iterator[tuple[int, int]]:
        """Yields the last entry of each document with a longer end of the text, and that length."""
        for place in self.places.get(tail, ()):
            first, end = int(self._first[place]), int(self._end[place])
            most = min(len(text), end - first, max(_MAX_TAIL, length + 1))
            same = text[len(text) - most :][::-1] == self._tokens[end - most : end][::-1]
            longest = most if same.all() else int(same.argmin())
            if longest > length:
                yield int(self._entries[place]), longest
