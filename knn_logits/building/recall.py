"""Measures the recall of an index: the share of the true nearest entries that it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.building.timing import recall_seconds
from knn_logits.index.base import Index, pairwise
from knn_logits.index.exact import ExactIndex
from knn_logits.progress import Progress, no_progress, while_running
from knn_logits.settings.config import Metric
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import IndexRecord, RecallRecord

RECALL_AT = 64
# Between a recall of 0.94 and of 0.995 the perplexity differs by less than 1% (LOG.md).
RECALL_WANTED = 0.9
# Lists that bring less than this share of the neighbors are not worth the time to visit them.
_NO_GAIN = 0.005
_ROUNDING = 1e-6
_QUERIES = 256
_KEYS_AT_ONCE, _GATHERED = 65_536, 4096


def measured(
    store: Datastore,
    index: Index,
    record: IndexRecord,
    nprobes: Sequence[int],
    progress: Progress = no_progress,
    wanted: float | None = None,
) -> IndexRecord:
    """Measures the recall at each nprobe in turn, until one reaches the wanted recall.

    Where none does, the smallest is taken that finds about as much as the best.

    Args:
        store: The datastore, with keys.
        index: Its index, which keeps the nprobe that was found.
        record: The record of the index so far.
        nprobes: The values to try, ascending, where the index has inverted lists.
        progress: A callback that is told that recall is measured.
        wanted: The recall to reach; None takes 0.9.

    Returns:
        The record with the recall and the nprobe.
    """
    if record.factory == "exact" or len(store) < 2:
        return record
    dim, metric = store.manifest.dim, store.manifest.metric
    truth = while_running(
        progress,
        "recall",
        lambda: recall_seconds(len(store), dim, metric, record.factory),
        lambda: sample_truth(store, record.seed),
    )
    searched: Any = index
    if searched.nprobe is not None:
        values: dict[int, float] = {}
        for nprobe in nprobes:
            searched.nprobe = nprobe
            value = values[searched.nprobe] = recall(index, truth)
            if value >= (wanted or RECALL_WANTED):
                break
        else:
            # Compressed keys may keep it from the wanted recall however many lists are visited.
            enough = max(values.values()) - _NO_GAIN
            searched.nprobe, value = next(one for one in values.items() if one[1] >= enough)
    else:
        value = recall(index, truth)
    found = RecallRecord(
        at=truth.neighbors.shape[1], value=round(value, 4), queries=len(truth.queries)
    )
    return record.model_copy(update={"nprobe": searched.nprobe, "recall": found})


@dataclass(frozen=True)
class Truth:
    """Some entries, whose keys are the queries, and the true nearest other entries of each.

    Attributes:
        entries: int64 [queries], the entries.
        queries: float32 [queries, dim], their keys.
        neighbors: int64 [queries, neighbors], nearest first.
        keys: Returns the keys of some entries, of any floating type [entries, dim].
        metric: The metric.
    """

    entries: Array
    queries: Array
    neighbors: Array
    keys: Callable[[Array], Array]
    metric: Metric

    @classmethod
    def of(
        cls,
        entries: Array,
        queries: Array,
        ids: Array,
        keys: Callable[[Array], Array],
        metric: Metric,
    ) -> Truth:
        """Makes it from the true nearest entries, int64 [queries, neighbors + 1], of each query.

        An entry is not its own neighbor.
        """
        rows = (
            [one for one in found if one != own]
            for own, found in zip(entries.tolist(), ids.tolist(), strict=True)
        )
        neighbors = np.array([row[: ids.shape[1] - 1] for row in rows], dtype=np.int64)
        return cls(entries, queries, neighbors, keys, metric)

    def as_near(self, rows: Array, entries: Array) -> Array:
        """Whether entries are as near as the farthest true neighbor of their query, bool [found].

        Args:
            rows: int64 [found], the number of each entry's query.
            entries: int64 [found], the entries.
        """
        last = self._nearness(np.arange(len(self.queries)), self.neighbors[:, -1])[rows]
        nearness = self._nearness(rows, entries)
        # Equal keys may differ in the last bits of a sum, which depend on the others of a batch.
        near: Array = nearness >= last - _ROUNDING * np.abs(last)
        return near

    def _nearness(self, rows: Array, entries: Array) -> Array:
        parts = [np.zeros(0, np.float32)]
        for first in range(0, len(rows), _GATHERED):
            some = slice(first, first + _GATHERED)
            keys = torch.from_numpy(self.keys(entries[some]).astype(np.float32))
            queries = torch.from_numpy(self.queries[rows[some]])
            parts.append(pairwise(queries, keys.unsqueeze(1), self.metric)[:, 0].numpy())
        return np.concatenate(parts)


def sample_truth(store: Datastore, seed: int) -> Truth:
    """Draws entries to measure recall with, and finds the true nearest other entries of each."""
    chosen = np.random.default_rng(seed + 1).permutation(len(store))[:_QUERIES]
    queries = store.keys(chosen).astype(np.float32)
    _, ids = exact_neighbors(store, queries, min(RECALL_AT + 1, len(store)))
    return Truth.of(chosen, queries, ids, store.keys, store.manifest.metric)


def recall(index: Index, truth: Truth) -> float:
    """The share of the true neighbors that an index finds.

    Where a text repeats itself, many entries are equally near. Each of them is as good as another.
    """
    k = truth.neighbors.shape[1]
    _, found = index.search(torch.from_numpy(truth.queries), k + 1)
    ids = found.numpy()
    hits = (ids[:, :, None] == truth.neighbors[:, None, :]).any(axis=-1)
    rows, columns = np.nonzero(~hits & (ids >= 0) & (ids != truth.entries[:, None]))
    hits[rows, columns] = truth.as_near(rows, ids[rows, columns])
    return float(np.minimum(hits.sum(axis=-1), k).mean() / k)


def exact_neighbors(store: Datastore, queries: Array, k: int) -> tuple[Array, Array]:
    """Finds the true nearest entries of each query by reading through all keys.

    Entries that others stand for are left out.

    Args:
        store: A datastore with keys.
        queries: float32 [rows, dim].
        k: Neighbors of each query.

    Returns:
        nearness: float32 [rows, k], nearest first.
        ids: int64 [rows, k].
    """
    metric = store.manifest.metric
    asked = torch.from_numpy(queries)
    best = torch.empty(len(queries), 0, dtype=torch.float32)
    best_ids = torch.empty(len(queries), 0, dtype=torch.int64)
    first, away = 0, store.merged_away
    for batch in store.key_batches(_KEYS_AT_ONCE):
        exact = ExactIndex(torch.from_numpy(batch), metric)
        gone = away[(away >= first) & (away < first + len(batch))]
        if len(gone):
            exact.remove(gone - first)
        found, ids = exact.search(asked, k)
        best, best_ids = torch.cat([best, found], -1), torch.cat([best_ids, ids + first], -1)
        best, order = torch.topk(best, min(k, best.shape[1]), dim=-1)
        best_ids = best_ids.gather(-1, order)
        first += len(batch)
    return best.numpy(), best_ids.numpy()
