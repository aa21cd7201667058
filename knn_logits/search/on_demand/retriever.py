"""`OnDemandRetriever` searches a datastore without keys, as SK-MT (2023) and NEST (2024) do."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.keys import KeySource
from knn_logits.errors import ConfigError, DatastoreError
from knn_logits.index.exact import ExactIndex
from knn_logits.index.opening import Indexes, hidden_entries
from knn_logits.locks import Recent
from knn_logits.metrics import Metric
from knn_logits.search.infini_gram import SuffixIndex
from knn_logits.search.neighbors import Neighbors, joined
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.on_demand.finding import PassageFinder
from knn_logits.search.on_demand.key_cache import PassageKeys
from knn_logits.search.on_demand.passages import Passages
from knn_logits.search.retriever import Retriever, counts_shared
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore

# The most bytes of joined indexes that are kept. Each text of a batch has one.
_JOINED_BYTES = 256 << 20


class OnDemandRetriever(Retriever):
    """Searches the passages of a datastore that matter for each text."""

    @classmethod
    def serves(cls, store: Datastore, config: KNNConfig) -> bool:  # noqa: ARG003
        """See `Retriever.serves`."""
        return store.manifest.on_demand is not None

    @classmethod
    def opened(
        cls, store: Datastore, config: KNNConfig, indexes: Indexes, source: KeySource | None
    ) -> OnDemandRetriever:
        """See `Retriever.opened`."""
        return cls(store, config, indexes=indexes, source=source)

    def __init__(
        self,
        store: Datastore,
        config: KNNConfig,
        *,
        indexes: Indexes | None = None,
        source: KeySource | None = None,
        without: Array | None = None,
    ) -> None:
        record = store.manifest.on_demand
        assert record is not None
        for name, is_set in (
            ("--retomaton", config.retomaton),
            ("--refine", config.refine),
            ("--nprobe", config.nprobe is not None),
        ):
            if is_set:
                raise ConfigError(
                    f"{store.folder} stores no keys, which {name} needs: remove {name}, or build "
                    "the datastore without --no-keys"
                )
        if source is None:
            raise DatastoreError(
                f"{store.folder} stores no keys, so a model has to compute them: open it as "
                "Memory(model, datastore)"
            )
        self.store = store
        self.config = config
        self.metric: Metric = store.manifest.metric
        if without is None and config.exclude:
            without = store.entries_of(config.exclude)
        self.without = without
        self.indexes = indexes or Indexes()
        hidden = hidden_entries(store, self.without)
        self._hidden: Array | None = None
        if len(hidden):
            self._hidden = np.zeros(len(store), bool)
            self._hidden[hidden] = True
        self._values = store.values
        self._array: Array = self._values.numpy()
        self.counts_shared = counts_shared(store, config)
        once = self.indexes.once
        cut = record.passage, record.context
        passages = once(store, ("passages", *cut), lambda: Passages(store.contexts, *cut))
        device = self.indexes.device
        self.keys = once(
            store, ("passage keys", *cut), lambda: PassageKeys(store, passages, source, device)
        )
        suffixes = once(store, ("suffixes", config.exclude), lambda: SuffixIndex(store, without))
        self._finder = once(
            store,
            ("finder", config.exclude, record),
            lambda: PassageFinder(suffixes, passages, record),
        )
        self._passages = passages
        self._open: Recent[tuple[int, ...], tuple[ExactIndex, Tensor]] = Recent(
            _JOINED_BYTES, lambda joined_index: joined_index[0].bytes
        )

    def search(self, queries: Tensor, texts: Prefixes | None = None) -> Neighbors:
        """Finds the neighbors of queries [rows, dim] among the passages of their texts."""
        if texts is None:
            raise ConfigError(
                f"{self.store.folder} stores no keys, so a search needs the text before each "
                "query: pass it as texts="
            )
        self._check_length(queries)
        rows: dict[tuple[int, ...], list[int]] = {}
        for row, passages in enumerate(self._finder.find(texts)):
            rows.setdefault(passages, []).append(row)
        queries = queries.detach().float()
        device = self.indexes.device
        parts: list[tuple[Tensor, Neighbors]] = []
        for passages, members in rows.items():
            chosen = torch.tensor(members)
            parts.append((chosen, self._among(passages, queries[chosen.to(queries.device)])))
        width = max((part.k for _, part in parts), default=0)
        if not width:
            return Neighbors.nothing(len(queries), device)
        order = torch.cat([chosen for chosen, _ in parts]).argsort().to(device)
        padded = [part.padded(width) for _, part in parts]
        every_row = all(part.every_row for part in padded)
        neighbors = joined(padded, 0, every_row=every_row)[order]
        return self._with_shared(self._without_sinks(queries, neighbors), texts)

    def _among(self, passages: tuple[int, ...], queries: Tensor) -> Neighbors:
        """Searches some passages for queries, float32 [rows, dim]."""
        if not passages:
            return Neighbors.nothing(len(queries), self.indexes.device)
        index, entries = self._joined(passages)
        nearness, places = index.search(queries, self.config.k)
        if not places.shape[1]:
            return Neighbors.nothing(len(queries), self.indexes.device)
        ids = torch.where(places < 0, places, entries[places.clamp(min=0)])
        every_row = int(ids[:, 0].min()) >= 0
        return Neighbors(ids, nearness, self._looked_up(ids), self.metric, every_row)

    def _joined(self, passages: tuple[int, ...]) -> tuple[ExactIndex, Tensor]:
        """Returns the index over some passages, and the entry of each of its keys."""
        if cached := self._open.take([passages]):
            return cached[passages]
        index = ExactIndex.joined(self.keys.of(passages))
        entries = np.concatenate([np.arange(*self._passages.span(passage)) for passage in passages])
        if self._hidden is not None and self._hidden[entries].any():
            index.remove(np.flatnonzero(self._hidden[entries]))
        joined_index = index, torch.from_numpy(entries).to(self.indexes.device)
        self._open.keep({passages: joined_index})
        return joined_index
