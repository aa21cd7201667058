"""`Endings` finds the entries after the longest end of a text that occurs word for word."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.index.base import pairwise
from knn_logits.index.opening import Indexes, hidden_entries
from knn_logits.metrics import Metric
from knn_logits.search.neighbors import Neighbors
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.rarity import rarity_of_end, token_rarities
from knn_logits.search.retriever import Retriever
from knn_logits.search.suffix_index import SuffixIndex
from knn_logits.store.datastore import Datastore

# Of an end that occurs more often, so many places are compared.
_MOST = 1024
# So many of the last tokens of a document are looked up at once, and at most so many are compared.
_TAIL, _LONGEST = 4, 256


class Endings(Retriever):
    """Finds entries after the longest end of a text that is as rare as `least`, in nats.

    Where the text is at a document's end, its token `end_token` follows. A datastore without a
    suffix index is sorted at opening: a second for a million tokens.
    """

    def __init__(
        self, retriever: Retriever, indexes: Indexes, least: float, end_token: int | None = None
    ) -> None:
        self.store, self.config, self.indexes = retriever.store, retriever.config, indexes
        self.metric: Metric = retriever.metric
        self._whole, self._least, self._end_token = retriever, least, end_token
        self._first = np.cumsum([0, *(len(store) for store in self.stores)])
        self._ends: list[tuple[SuffixIndex, int]] = []
        self._tails: list[tuple[_Tails, int]] = []
        self._words = next((store.words for store in self.stores if store.words is not None), None)
        for number, share in enumerate(retriever.weights or [1.0] * len(self.stores)):
            store = self.stores[number]
            # A learned memory has no text.
            if share > 0.0 and store.manifest.learned is None:
                without = store.entries_of(self.config.exclude) if self.config.exclude else None
                make = partial(SuffixIndex, store, without, make=True)
                # A stored suffix order serves the ∞-gram as well.
                name = "endings" if store.suffixes is None else "suffixes"
                index = indexes.once(store, (name, self.config.exclude), make)
                self._ends.append((index, int(self._first[number])))
                find = partial(_Tails, store, without)
                tails = indexes.once(store, ("tails", self.config.exclude), find)
                self._tails.append((tails, int(self._first[number])))
        # A server makes a memory for each request, so the corpus is counted once.
        self._rarity = token_rarities(
            [
                indexes.once(store, "token counts", partial(np.bincount, np.asarray(store.tokens)))
                for store in self.stores
            ]
        )

    @property
    def stores(self) -> list[Datastore]:
        """See `Retriever.stores`."""
        return self._whole.stores

    def locate(self, entry: int) -> tuple[Datastore, int]:
        """See `Retriever.locate`."""
        return self._whole.locate(entry)

    def search(self, queries: Tensor, texts: Prefixes | None = None) -> Neighbors:
        """At most k entries a row, the nearest, with `matched` and `rarity`."""
        assert texts is not None
        lengths, rarity, listed, ended = self._listed(texts)
        width = min(self.config.k, max(map(len, listed), default=0))
        ids = torch.full((len(listed), width), -1)
        nearness = torch.full((len(listed), width), -torch.inf)
        values = torch.zeros_like(ids)
        for row, entries in enumerate(listed):
            if len(entries):
                near, tokens = self._compared(queries[row].float().cpu(), entries)
                nearest = near.topk(min(width, len(near)))
                columns = slice(len(nearest.indices))
                ids[row, columns] = torch.from_numpy(entries)[nearest.indices]
                nearness[row, columns] = nearest.values
                values[row, columns] = tokens[nearest.indices]
                if ended[row] and self._end_token is not None:
                    values[row, columns] = self._end_token
        matched = torch.from_numpy(lengths).unsqueeze(-1) * (ids >= 0)
        neighbors = Neighbors(
            ids, nearness, values, self.metric, matched=matched, rarity=torch.from_numpy(rarity)
        )
        return neighbors.to(queries.device)

    def _listed(self, texts: Prefixes) -> tuple[Array, Array, list[Array], Array]:
        """Each text's longest end and rarity, its entries, and whether a document ends there."""
        ranges = [index.ranges(texts) for index, _ in self._ends]
        lengths = np.max([longest for *_, longest in ranges], axis=0, initial=0)
        rarity, ended = np.zeros(len(texts), np.float32), np.zeros(len(texts), bool)
        listed = [np.empty(0, np.int64)] * len(texts)
        for row, length in enumerate(lengths.tolist()):
            text = texts.tokens[texts.first[row] : texts.end[row]]
            longest, entries = self._at_document_end(text, length)
            lengths[row] = longest = max(longest, length)
            # No sum is larger than that of all tokens, which is faster.
            if not longest or self._rarity[text[-longest:]].sum() < self._least:
                continue
            total = rarity_of_end(text, longest, self._rarity, self._words)
            if total >= self._least:
                rarity[row], ended[row] = total, longest > length
                parts = [
                    _spread(index, int(low[row]), int(high[row])) + first
                    for (index, first), (low, high, longest_of) in zip(
                        self._ends, ranges, strict=True
                    )
                    if longest_of[row] == length
                ]
                listed[row] = entries if ended[row] else np.concatenate(parts)
        return lengths, rarity, listed, ended

    def _at_document_end(self, text: Array, length: int) -> tuple[int, Array]:
        """The longest document's end, if above `length`, and the last entries of such documents."""
        if self._end_token is None:
            return 0, np.empty(0, np.int64)
        best = 0
        entries: list[int] = []
        for tails, first in self._tails:
            for entry, longest in tails.ending(text, length):
                if longest > best:
                    best, entries = longest, []
                if longest == best:
                    entries.append(entry + first)
        return best, np.array(entries, np.int64)

    def _compared(self, query: Tensor, entries: Array) -> tuple[Tensor, Tensor]:
        """Nearness and token of each entry; all are equally near without stored vectors."""
        if len(self.stores) == 1:
            return self._compared_in(self.stores[0], query, entries)
        near, tokens = torch.zeros(len(entries)), torch.zeros(len(entries), dtype=torch.int64)
        owner = np.searchsorted(self._first, entries, side="right") - 1
        for number in np.unique(owner).tolist():
            places = np.flatnonzero(owner == number)
            part = self._compared_in(
                self.stores[number], query, entries[places] - self._first[number]
            )
            near[places], tokens[places] = part
        return near, tokens

    def _compared_in(
        self, store: Datastore, query: Tensor, entries: Array
    ) -> tuple[Tensor, Tensor]:
        """`_compared` for entries of one datastore."""
        tokens = store.values[torch.from_numpy(entries)].long()
        if store.has_keys:
            vectors = torch.from_numpy(store.keys(entries)).float()
        elif store.merged is None and store.manifest.on_demand is None:
            vectors = self.indexes.open(store, self.config).reconstruct(entries).float().cpu()
        else:
            return torch.zeros(len(entries)), tokens
        return pairwise(query.unsqueeze(0), vectors.unsqueeze(0), self.metric)[0], tokens


def _spread(index: SuffixIndex, low: int, high: int) -> Array:
    """The entries of a range of the suffix order; evenly spread ones of a long range."""
    if high - low <= _MOST:
        return index.entries(low, high)
    places = low + np.arange(_MOST) * (high - low) // _MOST
    return np.concatenate([index.entries(place, place + 1) for place in places.tolist()])


class _Tails:
    """The ends of a datastore's documents, but of those that are left out."""

    def __init__(self, store: Datastore, without: Array | None) -> None:
        self._tokens = np.asarray(store.tokens)
        first, length = np.asarray(store.documents.first), np.asarray(store.documents.length)
        # Documents that were joined do not end.
        long = (length > _TAIL) & (not store.manifest.windows.concatenate)
        self._first, self._end = first[long], (first + length)[long]
        self._entries = self._end - 2 - np.flatnonzero(long)
        shown = ~np.isin(self._entries, hidden_entries(store, without))
        self._first, self._end = self._first[shown], self._end[shown]
        self._entries = self._entries[shown]
        self._tails = self._tokens[self._end[:, None] - np.arange(_TAIL, 0, -1)]

    def ending(self, text: Array, length: int) -> Iterator[tuple[int, int]]:
        """Yields the last entry of each document with a longer end of the text, and that length."""
        if len(text) < _TAIL or not len(self._tails):
            return
        for place in np.flatnonzero((self._tails == text[-_TAIL:]).all(axis=1)).tolist():
            first, end = int(self._first[place]), int(self._end[place])
            most = min(len(text), end - first, max(_LONGEST, length + 1))
            same = text[len(text) - most :][::-1] == self._tokens[end - most : end][::-1]
            longest = most if same.all() else int(same.argmin())
            if longest > length:
                yield int(self._entries[place]), longest
