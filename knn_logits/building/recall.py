"""Measures the recall of an index: the share of the true nearest entries that it finds."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.index.base import Index, nearest_columns
from knn_logits.index.exact import ExactIndex
from knn_logits.index.kinds import Kind
from knn_logits.metrics import COMPARISONS
from knn_logits.progress import Progress, no_progress, while_running
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import IndexRecord, RecallRecord

logger = logging.getLogger(__name__)

RECALL_AT = 64
# Between a recall of 0.94 and of 0.995 the perplexity differs by less than 1%
# (docs/research/nearest-neighbors.md).
_ENOUGH_RECALL = 0.9
# Lists that bring less than this share of the neighbors are not worth the time to visit them.
_NO_GAIN = 0.005
_ROUNDING = 1e-6
_QUERIES = 256
_NPROBES = (1, 2, 4, 8, 16, 32, 64, 128)


def measured(
    store: Datastore, index: Index, record: IndexRecord, progress: Progress = no_progress
) -> IndexRecord:
    """Measures recall, at the record's nprobe or the least of enough recall or the best."""
    kind = Kind(record.factory, store.manifest.dim, store.manifest.metric)
    if not kind.approximate or len(store) < 2:
        return record
    truth = while_running(progress, "recall", lambda: sample_truth(store, record.seed))
    if index.nprobe is None:
        value = recall(index, truth)
    else:
        values: dict[int, float] = {}
        for nprobe in (record.nprobe,) if record.nprobe else _NPROBES:
            index.nprobe = nprobe
            value = values[index.nprobe] = recall(index, truth)
            if value >= _ENOUGH_RECALL:
                break
        else:
            # Compressed keys may keep it from that however many lists are visited.
            least = max(values.values()) - _NO_GAIN
            index.nprobe, value = next(pair for pair in values.items() if pair[1] >= least)
    if value < _ENOUGH_RECALL:
        logger.warning(
            f"the index has a recall of only {value:.1%}: choose another type with "
            f"`knn-logits index {store.folder} --index FACTORY`"
        )
    neighbors, queries = truth.neighbors.shape[1], len(truth.queries)
    measurement = RecallRecord(at=neighbors, value=round(value, 4), queries=queries)
    return record.model_copy(update={"nprobe": index.nprobe, "recall": measurement})


@dataclass(frozen=True)
class Truth:
    """Entries whose keys are queries, and the true nearest others of each, int64 [queries, k]."""

    store: Datastore
    entries: Array
    queries: Array
    neighbors: Array

    def as_near(self, ids: Array) -> Array:
        """Whether entries, int64 [queries, n], are as near to each query as its last neighbor."""
        last = self._nearness(self.neighbors[:, -1:])
        # Equal keys may differ in the last bits of a sum, which depend on the others of a batch.
        return np.asarray(self._nearness(ids) >= last - _ROUNDING * np.abs(last))

    def _nearness(self, ids: Array) -> Array:
        queries = torch.from_numpy(self.queries)
        keys = torch.from_numpy(self.store.keys(ids).astype(np.float32))
        return COMPARISONS[self.store.manifest.metric].pairwise(queries, keys).numpy()


def sample_truth(store: Datastore, seed: int) -> Truth:
    """Draws entries to measure recall with, and finds the true nearest other entries of each."""
    entries = np.random.default_rng(seed + 1).permutation(len(store))[:_QUERIES]
    queries = store.keys(entries).astype(np.float32)
    k = min(RECALL_AT, len(store) - 1)
    rows = zip(entries.tolist(), exact_neighbors(store, queries, k + 1).tolist(), strict=True)
    others = [[id for id in row if id != entry][:k] for entry, row in rows]
    return Truth(store, entries, queries, np.array(others, dtype=np.int64))


def recall(index: Index, truth: Truth) -> float:
    """The share of the true neighbors that an index finds; others as near are as good."""
    k = truth.neighbors.shape[1]
    ids = index.search(torch.from_numpy(truth.queries), k + 1)[1].numpy()
    hits = truth.as_near(ids.clip(min=0)) & (ids >= 0) & (ids != truth.entries[:, None])
    return float(np.minimum(hits.sum(axis=-1), k).mean() / k)


def exact_neighbors(store: Datastore, queries: Array, k: int) -> Array:
    """The true neighbors of queries, nearest first, int64 [rows, k]."""
    rows = torch.from_numpy(queries)
    best = torch.empty(len(queries), 0, dtype=torch.float32)
    best_ids = torch.empty(len(queries), 0, dtype=torch.int64)
    first = 0
    for batch in store.key_batches():
        exact = ExactIndex(torch.from_numpy(batch), store.manifest.metric)
        nearness, ids = exact.search(rows, k)
        best, best_ids = torch.cat([best, nearness], -1), torch.cat([best_ids, ids + first], -1)
        best, order = nearest_columns(best, min(k, best.shape[1]), best_ids)
        best_ids = best_ids.gather(-1, order)
        first += len(batch)
    return np.asarray(best_ids.numpy())
