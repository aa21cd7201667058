"""`Endings` finds the entries that follow the longest end of a text in datastores, word for word.

Unlike the ∞-gram, which counts these places, it compares their keys, and it says how rare the
shared words are.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.index.base import pairwise
from knn_logits.index.opening import Indexes
from knn_logits.metrics import Metric
from knn_logits.search.infini_gram import SuffixIndex
from knn_logits.search.neighbors import Neighbors
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.retriever import Retriever
from knn_logits.store.datastore import Datastore

# Of an end that occurs more often, so many places are compared.
_MOST = 1024


class Endings(Retriever):
    """Finds the entries after the longest end of a text, in place of the nearest entries.

    A datastore without a suffix index is sorted when it is opened: a second for a million tokens.

    Args:
        retriever: The retriever of one datastore or several, with its settings; `k` and `exclude`
            matter here.
        indexes: Keeps what was sorted.
        least: The rarity from which an end counts, in nats.
    """

    def __init__(self, retriever: Retriever, indexes: Indexes, least: float) -> None:
        self.store, self.config, self.indexes = retriever.store, retriever.config, indexes
        self.metric: Metric = retriever.metric
        self._whole, self._least = retriever, least
        self._first = np.cumsum([0, *(len(store) for store in self.stores)])
        self._ends: list[tuple[SuffixIndex, int]] = []
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
        # A server makes a memory for each request, so the corpus is counted once.
        self._rarity = rarity_of(
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
        """Finds the entries after the longest end of each text, if that end is rare enough.

        Args:
            queries: [rows, dim], the states at the ends of the texts.
            texts: The texts. No end extends beyond a negative number.

        Returns:
            At most k entries a row, the nearest ones, with `matched` and `rarity`. A row without
            a rare end has none, and the rarity 0.
        """
        assert texts is not None
        lengths, rarity, listed = self._listed(texts)
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
        matched = torch.from_numpy(lengths).unsqueeze(-1) * (ids >= 0)
        found = Neighbors(
            ids, nearness, values, self.metric, matched=matched, rarity=torch.from_numpy(rarity)
        )
        return found.to(queries.device)

    def _listed(self, texts: Prefixes) -> tuple[Array, Array, list[Array]]:
        """The tokens of each text's longest end, its rarity, and the entries after it."""
        ranges = [index.ranges(texts) for index, _ in self._ends]
        lengths = np.max([own for *_, own in ranges], axis=0, initial=0)
        rarity = np.zeros(len(texts), np.float32)
        listed = [np.empty(0, np.int64)] * len(texts)
        for row, length in enumerate(lengths.tolist()):
            end = int(texts.end[row])
            total = self._rarity[texts.tokens[end - length : end]].sum()
            if length and total >= self._least:
                rarity[row] = total
                parts = [
                    _spread(index, int(low[row]), int(high[row])) + first
                    for (index, first), (low, high, own) in zip(self._ends, ranges, strict=True)
                    if own[row] == length
                ]
                listed[row] = np.concatenate(parts)
        return lengths, rarity, listed

    def _compared(self, query: Tensor, entries: Array) -> tuple[Tensor, Tensor]:
        """How near each entry is, float32 [entries], and its token.

        All are equally near where a datastore keeps no vectors.
        """
        near, tokens = torch.zeros(len(entries)), torch.zeros(len(entries), dtype=torch.int64)
        owner = np.searchsorted(self._first, entries, side="right") - 1
        for number in np.unique(owner).tolist():
            store, places = self.stores[number], torch.from_numpy(np.flatnonzero(owner == number))
            own = entries[places.numpy()] - self._first[number]
            tokens[places] = store.values[torch.from_numpy(own)].long()
            if store.has_keys:
                vectors = torch.from_numpy(store.keys(own)).float()
            elif store.merged is None and store.manifest.on_demand is None:
                vectors = self.indexes.open(store, self.config).reconstruct(own).float().cpu()
            else:
                continue
            near[places] = pairwise(query.unsqueeze(0), vectors.unsqueeze(0), self.metric)[0]
        return near, tokens


def _spread(index: SuffixIndex, low: int, high: int) -> Array:
    """The entries of a range of the suffix order; evenly spread ones of a long range."""
    if high - low <= _MOST:
        return index.entries(low, high)
    places = low + np.arange(_MOST) * (high - low) // _MOST
    return np.concatenate([index.entries(place, place + 1) for place in places.tolist()])


def rarities(corpora: list[Array]) -> Array:
    """How rare each token is: -ln of its frequency in some texts, float32 [largest token + 1]."""
    return rarity_of([np.bincount(tokens) for tokens in corpora])


def rarity_of(counts: list[Array]) -> Array:
    """The same, from how often each token stands in each text, int64 [largest token + 1]."""
    total = np.zeros(max(1, *map(len, counts)), np.int64)
    for part in counts:
        total[: len(part)] += part
    rarity: Array = -np.log(np.maximum(total, 1) / max(1, total.sum())).astype(np.float32)
    return rarity
