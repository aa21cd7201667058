"""`FaissIndex` searches approximately. `plain_arrays` converts it to arrays and back."""

from __future__ import annotations

import itertools
import logging
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
    faiss_for_torch,
    faiss_module,
    faiss_reason,
    inverted_file,
    make_empty,
    openmp_threads,
    precompute,
    search,
)
from knn_logits.metrics import COMPARISONS, Metric, as_distance

logger = logging.getLogger(__name__)

# With few queries, waking a second thread costs more time than it saves, and sometimes 10 ms.
_ROWS_FOR_THREADS = 32
# Number of neighbors beyond k that a search asks for, since some are equally near.
_MORE = 8
# With few candidates, selecting from all of them costs less than a heap of k neighbors.
_CANDIDATES_PER_K = 4
_LARGEST_RANGE = 1 << 24
# Maximum number of neighbors that FAISS finds on a GPU, and of lists that it visits.
_MOST_ON_GPU = 2048
# Its kernel for inverted lists has 48 KB of shared memory, which k fills at 48 bytes a neighbor.
_SHARED_BYTES, _NEIGHBOR_BYTES, _FEWEST_ON_GPU = 49_152, 48, 32


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
        self._on_gpu = hasattr(index, "getDevice")
        self._device = torch.device("cuda", index.getDevice()) if self._on_gpu else "cpu"
        self._ivf: Any = None if self._on_gpu else inverted_file(index)
        precompute(self._ivf)
        faiss = self._faiss
        ranged = (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer, faiss.IndexIVFPQ)
        self._can_range = type(self._ivf) in ranged
        self._filled = max(1, int(np.count_nonzero(self.list_sizes()))) if self._ivf else 1
        # Removed vectors that FAISS cannot delete. They are dropped from its results.
        self._hidden: Array | None = None
        # The index on the processor that an index on a GPU is a copy of, for a larger k than this.
        self._home: FaissIndex | None = None
        self.largest_k = _MOST_ON_GPU
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
        if self._on_gpu:
            return int(self._index.nprobe) if hasattr(self._index, "nprobe") else None
        return int(self._ivf.nprobe) if self._ivf is not None else None

    @nprobe.setter
    def nprobe(self, value: int | None) -> None:
        if value is None:
            return
        if self._on_gpu and hasattr(self._index, "nprobe"):
            self._index.nprobe = min(value, int(self._index.nlist))
            if self._home is not None:
                self._home.nprobe = value
        elif self._ivf is not None:
            self._ivf.nprobe = min(value, int(self._ivf.nlist))

    def add(self, keys: Array) -> None:
        """Adds keys after the present ones, float32 [rows, dim]."""
        self._index.add(prepared(keys, self.metric))
        self.size = int(self._index.ntotal)

    def remove(self, ids: Array) -> None:
        """Does what `Index.remove` says, on the CPU only."""
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
        queries = queries.to(self._device, torch.float32)
        if self._comparison.unit_length:
            queries = self._comparison.prepared(queries)
        k = min(k, self.size)
        if not math.isfinite(float(queries.sum())):
            # FAISS finds nothing for a query with NaN, but it does for an infinite one.
            finite = queries.isfinite().all(dim=-1, keepdim=True)
            queries = queries.masked_fill(~finite, math.nan)
        if self._on_gpu:
            return self._search_gpu(queries.contiguous(), k)
        rows = len(queries)
        threads = self.threads or (1 if rows < _ROWS_FOR_THREADS else None)
        array = np.ascontiguousarray(queries.numpy())
        if self._ranged(rows, k):
            with openmp_threads(threads):
                return self._search_range(array, k)
        return self._search_heap(array, k, threads)

    def _search_heap(
        self, queries: Array, k: int, threads: int | None, more: int = _MORE
    ) -> tuple[Tensor, Tensor]:
        # FAISS keeps any of several entries that are equally near, so all of them are asked for.
        hidden = 0 if self._hidden is None else len(self._hidden)
        most = max(1, self.size - hidden)
        width = min(k + more, most)
        distances, found = search(self._index, queries, width + hidden, threads=threads)
        scores = self._nearness(distances)
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
            again = self._search_heap(queries[beyond.numpy()], k, threads, 4 * more)
            nearness[beyond], ids[beyond] = again
        return nearness, ids

    def _nearness(self, distances: Array) -> Array:
        """Negates FAISS's squared distances in place, so that larger is nearer."""
        if self._comparison.sign < 0:
            np.negative(distances, out=distances)
        return distances

    def _shown(self, nearness: Array, ids: Array, k: int) -> tuple[Array, Array]:
        """Selects the k nearest that were not removed, with padding last."""
        assert self._hidden is not None
        gone = np.isin(ids, self._hidden) | (ids < 0)
        order = np.argsort(gone, axis=1, kind="stable")[:, :k]
        ids = np.take_along_axis(np.where(gone, -1, ids), order, axis=1)
        return np.ascontiguousarray(np.take_along_axis(nearness, order, axis=1)), ids

    def _search_gpu(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        beyond = k > self.largest_k or (self.nprobe or 0) > _MOST_ON_GPU
        if beyond and self._home is not None:
            nearness, ids = self._home.search(queries.cpu(), k)
            return nearness.to(queries.device), ids.to(queries.device)
        faiss_for_torch()
        distances, ids = self._index.search(queries, k)
        nearness = as_distance(distances, self.metric)
        return nearness.masked_fill(ids < 0, -torch.inf), ids

    def _ranged(self, rows: int, k: int) -> bool:
        if not self._can_range or k < 128:
            return False
        candidates = self._ivf.nprobe * self.size / self._filled
        return bool(candidates <= _CANDIDATES_PER_K * k and rows * candidates < _LARGEST_RANGE)

    def _search_range(self, queries: Array, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest of all visited keys without a heap: half the time for a large k."""
        everything = as_distance(-3.0e38, self.metric)
        limits, distances, neighbor_ids = self._index.range_search(queries, everything)
        bounds = limits.tolist()
        counts = [last - first for first, last in itertools.pairwise(bounds)]
        width = min(k, max(counts))
        nearness = np.empty((len(queries), width), np.float32)
        ids = np.empty((len(queries), width), np.int64)
        scores = self._nearness(distances)
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


def to_gpu(index: FaissIndex, device: torch.device) -> FaissIndex:
    """Moves an index to a GPU. It stays on the CPU if FAISS has no GPU form of it."""
    faiss = faiss_module()
    no_gpu = not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() == 0
    largest_k = largest_k_on_gpu(index)
    if no_gpu or index._hidden is not None or not largest_k:
        return index
    try:
        moved = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), device.index or 0, index.raw)
    except RuntimeError as error:
        logger.warning(
            "the index stays on the CPU, since FAISS cannot move it to a GPU: %s",
            faiss_reason(error),
        )
        return index
    on_gpu = FaissIndex(moved, index.metric, nprobe=index.nprobe, threads=index.threads)
    on_gpu._home, on_gpu.largest_k = index, largest_k
    return on_gpu


def largest_k_on_gpu(index: FaissIndex) -> int:
    """The largest k that FAISS can search on a GPU; 0 for none.

    A scalar quantizer takes 8 bytes a dimension of the kernel's shared memory, and k is rounded up
    to a power of two. With more bytes than there are FAISS ends the process (its issue 3207).
    """
    if not isinstance(index._ivf, faiss_module().IndexIVFScalarQuantizer):
        return _MOST_ON_GPU
    room = (_SHARED_BYTES - 8 * int(index._ivf.d)) // _NEIGHBOR_BYTES
    return 0 if room < _FEWEST_ON_GPU else min(_MOST_ON_GPU, 1 << (room.bit_length() - 1))
