"""`FaissIndex` searches approximately. `plain_arrays` converts it to arrays and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.index.base import nearest_columns, prepared, wrong_shape
from knn_logits.index.faiss_library import (
    faiss_module,
    faiss_reason,
    inverted_file,
    make_empty,
    openmp_threads,
    precompute,
)
from knn_logits.metrics import COMPARISONS, Metric, as_distance

# With few queries, waking a second thread costs more time than it saves, and sometimes 10 ms.
_ROWS_FOR_THREADS = 32
# Number of neighbors beyond k that a search asks for, since some are equally near.
_MORE = 8
# With few candidates, selecting from all of them costs less than a heap of k neighbors.
_CANDIDATES_PER_K, _LEAST_RANGED_K = 4, 128
_LARGEST_RANGE = 1 << 24


class FaissIndex:
    """A FAISS index with the package's protocol of an index."""

    def __init__(
        self,
        index: Any,
        metric: Metric,
        *,
        nprobe: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.metric: Metric = metric
        self._comparison = COMPARISONS[metric]
        self.dim = int(index.d)
        self.size = int(index.ntotal)
        self.threads = threads
        self._faiss = faiss_module()
        self._index = index
        self._ivf: Any = inverted_file(index)
        precompute(self._ivf)
        faiss = self._faiss
        ranged = (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer, faiss.IndexIVFPQ)
        self._can_range = type(self._ivf) in ranged
        self._filled = max(1, int(np.count_nonzero(self.list_sizes()))) if self._ivf else 1
        # Removed vectors that FAISS cannot delete. They are dropped from its results.
        self._hidden: Array | None = None
        if nprobe is not None:
            self.nprobe = nprobe

    def list_sizes(self) -> Array:
        """The number of keys in each inverted list, int64 [lists]."""
        lists = self._ivf.invlists
        return np.array([lists.list_size(number) for number in range(self._ivf.nlist)])

    @property
    def raw(self) -> Any:
        return self._index

    @property
    def nprobe(self) -> int | None:
        """Inverted lists visited for each query; None for an index without inverted lists."""
        return int(self._ivf.nprobe) if self._ivf is not None else None

    @nprobe.setter
    def nprobe(self, value: int | None) -> None:
        if value is not None and self._ivf is not None:
            self._ivf.nprobe = min(value, int(self._ivf.nlist))

    def add(self, keys: Array) -> None:
        """Adds keys after the present ones, float32 [rows, dim]."""
        self._index.add(prepared(keys, self.metric))
        self.size = int(self._index.ntotal)

    def remove(self, ids: Array) -> None:
        """Does what `Index.remove` says."""
        ids = np.ascontiguousarray(ids, np.int64)
        try:
            self._index.remove_ids(self._faiss.IDSelectorBatch(ids))
        except RuntimeError:
            self._hidden = ids
            return
        self.size = int(self._index.ntotal)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if queries.dim() != 2 or queries.shape[1] != self.dim:
            raise wrong_shape(queries, self.dim)
        if not self.size or not len(queries):
            return torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
        queries = queries.to("cpu", torch.float32)
        if self._comparison.unit_length:
            queries = self._comparison.prepared(queries)
        if not math.isfinite(float(queries.sum())):
            # FAISS finds nothing for a query with NaN, but it does for an infinite one.
            finite = queries.isfinite().all(dim=-1, keepdim=True)
            queries = queries.masked_fill(~finite, math.nan)
        array, k, rows = np.ascontiguousarray(queries.numpy()), min(k, self.size), len(queries)
        candidates = self._ivf.nprobe * self.size / self._filled if self._can_range else math.inf
        few = candidates <= _CANDIDATES_PER_K * k and rows * candidates < _LARGEST_RANGE
        with openmp_threads(self.threads or (1 if rows < _ROWS_FOR_THREADS else None)):
            if k >= _LEAST_RANGED_K and few:
                return self._search_range(array, k)
            return self._search_heap(array, k)

    def _search_heap(self, queries: Array, k: int, more: int = _MORE) -> tuple[Tensor, Tensor]:
        # FAISS keeps any of several entries that are equally near, so all of them are asked for.
        hidden = 0 if self._hidden is None else len(self._hidden)
        most = max(1, self.size - hidden)
        width = min(k + more, most)
        scores = np.empty((len(queries), width + hidden), np.float32)
        found = np.empty(scores.shape, np.int64)
        # Other libraries import `faiss.contrib.torch_utils`, which replaces `search` of each class.
        inside, *out = map(self._faiss.swig_ptr, (queries, scores, found))
        self._index.search_c(len(queries), inside, scores.shape[1], *out, None)
        if self._comparison.sign < 0:
            np.negative(scores, out=scores)
        if self._hidden is not None:
            scores, found = self._shown(scores, found, width)
        if found[:, -1].min() < 0:
            scores[found < 0] = -np.inf
        nearness, ids = torch.from_numpy(scores), torch.from_numpy(found)
        if width <= k:
            return nearness, ids
        last = nearness[:, k - 1].masked_fill(ids[:, k - 1] < 0, torch.nan)
        beyond = (last == nearness[:, -1]) & (width < most)
        if (last == nearness[:, k]).any():
            nearness, columns = nearest_columns(nearness, k, ids)
            ids = ids.gather(-1, columns)
        nearness, ids = nearness[:, :k].contiguous(), ids[:, :k].contiguous()
        if beyond.any():
            again = self._search_heap(queries[beyond.numpy()], k, 4 * more)
            nearness[beyond], ids[beyond] = again
        return nearness, ids

    def _shown(self, nearness: Array, ids: Array, k: int) -> tuple[Array, Array]:
        """Selects the k nearest that were not removed, with padding last."""
        assert self._hidden is not None
        gone = np.isin(ids, self._hidden) | (ids < 0)
        order = np.argsort(gone, axis=1, kind="stable")[:, :k]
        ids = np.take_along_axis(np.where(gone, -1, ids), order, axis=1)
        return np.ascontiguousarray(np.take_along_axis(nearness, order, axis=1)), ids

    def _search_range(self, queries: Array, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest of all visited keys without a heap: half the time for a large k."""
        everything = as_distance(-3.0e38, self.metric)
        limits, distances, neighbor_ids = self._index.range_search(queries, everything)
        bounds = limits.tolist()
        counts = [last - first for first, last in itertools.pairwise(bounds)]
        width = min(k, max(counts))
        nearness = np.empty((len(queries), width), np.float32)
        ids = np.empty((len(queries), width), np.int64)
        scores = as_distance(distances, self.metric)
        for row, (first, count) in enumerate(zip(bounds, counts, strict=False)):
            last = first + count
            if count > width:
                part = scores[first:last]
                nearest = np.argpartition(part, count - width)[count - width :]
                if np.count_nonzero(part >= part[nearest].min()) > width:
                    nearest = np.lexsort((neighbor_ids[first:last], -part))[:width]
                nearest += first
                np.take(scores, nearest, out=nearness[row], mode="clip")
                np.take(neighbor_ids, nearest, out=ids[row], mode="clip")
            else:
                nearness[row, :count] = scores[first:last]
                nearness[row, count:] = -np.inf
                ids[row, :count] = neighbor_ids[first:last]
                ids[row, count:] = -1
        return torch.from_numpy(nearness), torch.from_numpy(ids)


def build_faiss(
    factory: str,
    dim: int,
    metric: Metric,
    sample: Array,
    batches: Iterable[Array],
    threads: int | None = None,
) -> FaissIndex:
    """Trains a FAISS index on a sample of keys, float32 [rows, dim], and fills it with batches."""
    index = make_empty(factory, dim, metric)
    with openmp_threads(threads):
        try:
            index.train(prepared(sample, metric))
            for batch in batches:
                index.add(prepared(batch, metric))
        except RuntimeError as error:
            reason = faiss_reason(error)
            raise ConfigError(
                f"the index {factory!r} cannot be trained on {len(sample)} keys ({reason}); use "
                "--index with fewer lists, or auto, or exact"
            ) from error
    return FaissIndex(index, metric, threads=threads)
