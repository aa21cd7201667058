"""Finds the neighbors of queries: searches a datastore's index, and looks the values up."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import DatastoreError
from knn_logits.index.base import Index
from knn_logits.index.exact import TorchIndex
from knn_logits.index.opening import Indexes, find_sink
from knn_logits.locks import Copies
from knn_logits.metrics import COMPARISONS, Metric
from knn_logits.search.neighbors import Neighbors, Prefixes
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore

# More shared tokens than these count the same.
MAX_SHARED_TOKENS = 8
# The most numbers of keys that are gathered at once to refine, which are 256 MB of float32.
_REFINE_NUMBERS = 64 << 20


class SharedTokens:
    """Counts for `documents` and `contexts`, the first tokens of each, int64, ascending."""

    def __init__(self, tokens: Array, documents: Array, contexts: Array) -> None:
        before = np.full(len(tokens), MAX_SHARED_TOKENS, np.uint8)
        # A document may end before the next number of tokens, so the nearest beginning comes last.
        for number in reversed(range(MAX_SHARED_TOKENS)):
            before[documents[documents < len(tokens) - number] + number] = number
        # How many tokens of its document stand before each entry, and the last of them. The tokens
        # before that are the last ones before earlier entries.
        most = np.delete(before, contexts)
        last = np.delete(np.asarray(tokens), contexts[1:] - 1)[: len(most)].astype(np.int32)
        self._copies = Copies(torch.from_numpy(most), torch.from_numpy(last))

    def count(self, ids: Tensor, texts: Prefixes) -> Tensor:
        """Shared tokens of entries `ids` and each row's text, float32 [rows, k], 0 to 8."""
        ends = texts.last_tokens(MAX_SHARED_TOKENS).to(ids.device, non_blocking=True)
        most, last = self._copies.at(ids.device)
        if not len(last):
            return torch.zeros(ids.shape, device=ids.device)
        back = torch.arange(MAX_SHARED_TOKENS, device=ids.device)
        preceding = last[(ids.unsqueeze(-1) - back).clamp_(min=0)]
        same = preceding == ends.unsqueeze(1)
        same &= most[ids.clamp(min=0)].unsqueeze(-1) > back
        same &= (ids >= 0).unsqueeze(-1)
        return same.to(torch.int8).cumprod(dim=-1).sum(dim=-1).float()


class Retriever:
    """Searches one datastore.

    Args:
        store: The datastore.
        config: The settings, of which k, refine and nprobe matter here.
        index: An open index over the datastore's keys, if there is one.
        indexes: Opens the index if none is given; None opens one on the CPU.

    Raises:
        DatastoreError: when `refine` is wanted and the datastore has no keys.
    """

    def __init__(
        self,
        store: Datastore,
        config: KNNConfig,
        *,
        index: Index | None = None,
        indexes: Indexes | None = None,
    ) -> None:
        if config.refine and not store.offers_keys:
            raise DatastoreError(
                f"{store.folder} has no keys to recompute distances from: remove --refine, or "
                "fetch the keys with `knn-logits pull --keys`"
            )
        if config.refine:
            store.fetch_keys()
        self.store = store
        self.config = config
        self.metric: Metric = store.manifest.metric
        self.without = store.entries_of(config.exclude) if config.exclude else None
        self.indexes = indexes or Indexes()
        self.index = self.indexes.open(store, config) if index is None else index
        if config.nprobe is not None and self.index.nprobe is not None:
            self.index.nprobe = config.nprobe
        self._array: Array = store.values.numpy()
        self._copies = Copies(store.values)
        once = self.indexes.once
        self._sink = once(store, "sink", lambda: find_sink(store))
        self._shared: SharedTokens | None = None
        # The rows of a learned memory have no text.
        if config.suffix_weight != 1.0 and store.manifest.learned is None:
            first, contexts = store.documents.first, store.contexts.first
            make = partial(SharedTokens, store.tokens, first, contexts)
            self._shared = once(store, "shared tokens", make)
        self.reads_text = self._shared is not None

    # Whether the neighbors depend on earlier tokens, and not on the state alone.
    follows_text = False
    # Whether a search needs the text before each query, besides the query.
    reads_text = True

    @property
    def device(self) -> torch.device | None:
        """The device that searches without the host; None if the host takes part."""
        index = getattr(self, "index", None)
        if not isinstance(index, TorchIndex) or not index.size:
            return None
        needs_host = self.follows_text or self.config.refine
        return None if needs_host or index.reads_disk else index.device

    def begin_text(self) -> None:
        """Begins a new text: this thread's next step continues no earlier text."""

    @property
    def stores(self) -> list[Datastore]:
        """The datastores that are searched."""
        return [self.store]

    def locate(self, entry: int) -> tuple[Datastore, int]:
        """Returns the datastore of an entry that a search found, and the entry's number there."""
        return self.store, entry

    def search(self, queries: Tensor, texts: Prefixes | None = None) -> Neighbors:
        """Finds the neighbors of a batch of queries, in one search.

        Args:
            queries: [rows, dim], any floating type and device.
            texts: The text before each query, where `reads_text` or `follows_text` says that it is
                needed. Queries in a row whose texts have one length are one step.

        Returns:
            Neighbors with at most k columns, on the device of the index.

        Raises:
            SearchError: when the queries have another length than the keys.
        """
        queries = queries.detach().float()
        nearness, ids = self.index.search(queries, self.config.k)
        if self.config.refine:
            nearness = self._refined(queries.to(ids.device), ids.clamp(min=0))
            nearness = nearness.masked_fill(ids < 0, -torch.inf)
        return self._voters(queries, nearness, ids, texts)

    def _voters(
        self, queries: Tensor, nearness: Tensor, ids: Tensor, texts: Prefixes | None
    ) -> Neighbors:
        """Looks up the values of entries, drops attention sinks, and counts shared tokens."""
        # Padding gets the first entry's value.
        if ids.device.type == "cpu":
            values = torch.from_numpy(np.take(self._array, ids.numpy(), mode="clip"))
        else:
            values = self._copies.at(ids.device)[0][ids.clamp(min=0)]
        if self._sink is not None:
            hidden = self._sink.hides(queries, ids)
            nearness, ids = nearness.masked_fill(hidden, -torch.inf), ids.masked_fill(hidden, -1)
        shared = None
        if self._shared is not None and texts is not None:
            shared = self._shared.count(ids, texts)
        return Neighbors(ids, nearness, values.long(), self.metric, shared=shared)

    def _refined(self, queries: Tensor, ids: Tensor) -> Tensor:
        rows = max(1, _REFINE_NUMBERS // max(1, ids.shape[1] * queries.shape[1]))
        parts = []
        for query_part, id_part in zip(queries.split(rows), ids.split(rows), strict=True):
            keys = torch.from_numpy(self.store.keys(id_part.cpu().numpy())).float()
            parts.append(COMPARISONS[self.metric].pairwise(query_part, keys.to(queries.device)))
        return torch.cat(parts)
