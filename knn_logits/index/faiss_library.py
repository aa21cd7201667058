"""Everything that uses FAISS, which only this module imports: `FaissIndex`, errors and k-means."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, DamagedError, MissingDependencyError
from knn_logits.index.base import nearest_columns, prepared, wrong_shape
from knn_logits.locks import cached_property
from knn_logits.metrics import COMPARISONS, METRIC_OF_FAISS, Metric, as_distance

# Maximum size of the table of an index with product quantization.
MAX_TABLE_BYTES = 256 << 20
# With few queries, waking a second thread costs more time than it saves, and sometimes 10 ms.
_ROWS_FOR_THREADS = 32
# Number of neighbors beyond k that a search asks for, since some are equally near.
_MORE = 8
# With few candidates, selecting from all of them costs less than a heap of k neighbors.
_CANDIDATES_PER_K, _LEAST_RANGED_K = 4, 128
_LARGEST_RANGE = 1 << 24
# With fewer queries for each inverted list, decoding its codes costs more than it saves. With more
# than one thread FAISS is faster, since it shares the queries among them.
_QUERIES_PER_LIST = 24


def faiss_module() -> Any:
    try:
        import faiss  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingDependencyError(
            "FAISS is not installed: pip install faiss-cpu; the index type 'exact' does not need it"
        ) from error
    return faiss


def faiss_reason(error: Exception) -> str:
    """An error of FAISS as one line, without the C++ function that raised it."""
    text = " ".join(str(error).split())
    return re.sub(r"^Error in .* at \S+:\d+: (?:Error: )?", "", text)


def make_empty(factory: str, dim: int, metric: Metric) -> Any:
    faiss = faiss_module()
    try:
        index = faiss.index_factory(dim, factory, COMPARISONS[metric].faiss)
    except RuntimeError as error:
        reason = faiss_reason(error)
        raise ConfigError(
            f"FAISS cannot build the index {factory!r} for {dim}-dimensional keys ({reason}); "
            "try 'auto', 'exact' or 'IVF1024,SQ8'"
        ) from error
    index.cp.seed = 1234
    # This silences FAISS's warning on stderr that there are fewer keys than it recommends.
    index.cp.min_points_per_centroid = 1
    if isinstance(index, faiss.IndexIVFPQ):
        index.pq.cp.min_points_per_centroid = 1
        index.use_precomputed_table = -1  # `precompute` makes the table, if it is small
        # Polysemous training numbers the centroids so that codes can be compared by their bits. No
        # search here needs that, and it takes nearly all the time of the training.
        index.do_polysemous_training = False
    return index


def read_ivfpq(path: Path) -> tuple[Any, str, Metric]:
    """Reads an index from FAISS's own format; returns it, its factory string and its metric.

    FAISS bounds its counts, but does not check ids: `plain_arrays.from_arrays` does.
    """
    faiss = faiss_module()
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_READ_ONLY)
        lists, metric = index.invlists, METRIC_OF_FAISS[index.metric_type]
        flat = isinstance(faiss.downcast_index(index.quantizer), faiss.IndexFlat)
        in_memory = isinstance(faiss.downcast_InvertedLists(lists), faiss.ArrayInvertedLists)
        if type(index) is not faiss.IndexIVFPQ or not (flat and in_memory and index.by_residual):
            raise TypeError("it is of another type")
    except (RuntimeError, MemoryError, AttributeError, KeyError, TypeError) as error:
        reason = faiss_reason(error)
        raise DamagedError(
            f"{path} cannot be read as an IVFPQ index ({reason}); if the keys are available, build "
            "another index with --index"
        ) from error
    return index, f"IVF{index.nlist},PQ{index.pq.M}x{index.pq.nbits}", metric


def list_sizes(index: Any) -> Array:
    """The number of keys in each inverted list of an index of FAISS, int64 [lists]."""
    lists = index.invlists
    return np.array([lists.list_size(number) for number in range(index.nlist)], np.int64)


def precompute(index: Any) -> None:
    """Precomputes the products of lists and codes: a search is up to 2.5 times as fast."""
    if not isinstance(index, faiss_module().IndexIVFPQ) or not index.ntotal:
        return
    if 4 * index.nlist * index.pq.M * index.pq.ksub <= MAX_TABLE_BYTES:
        index.use_precomputed_table = 0
        index.precompute_table()


@contextlib.contextmanager
def openmp_threads(number: int | None) -> Iterator[None]:
    """Sets FAISS's number of threads for a while; None leaves it as it is."""
    if number is None:
        yield
        return
    faiss = faiss_module()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(number)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def train_centroids(keys: Array, clusters: int, *, metric: Metric, seed: int) -> Array:
    """Centroids of keys by k-means, float32 [clusters, dim]."""
    faiss = faiss_module()
    keys = prepared(keys, metric)
    kmeans = faiss.Kmeans(
        keys.shape[1], clusters, niter=20, seed=seed + 1, min_points_per_centroid=1
    )
    kmeans.train(keys)
    centroids: Array = kmeans.centroids
    return centroids


def assign(centroids: Array, keys: Array, *, metric: Metric) -> Array:
    """Finds the nearest centroid of each key, int64 [rows]."""
    _, nearest = faiss_module().knn(prepared(keys, metric), np.ascontiguousarray(centroids), 1)
    labels: Array = nearest[:, 0]
    return labels


class FaissIndex:
    """A FAISS index with the package's protocol of an index."""

    def __init__(
        self, index: Any, metric: Metric, *, nprobe: int | None = None, threads: int | None = None
    ) -> None:
        self.metric: Metric = metric
        self._comparison = COMPARISONS[metric]
        self.dim = int(index.d)
        self.size = int(index.ntotal)
        self.threads = threads
        self._faiss = faiss_module()
        self.raw = index  # the index of FAISS
        precompute(index)
        self._can_range = not isinstance(index, self._faiss.IndexIVFRaBitQ)
        self._filled = max(1, int(np.count_nonzero(list_sizes(index))))
        self.nprobe = nprobe

    @property
    def nprobe(self) -> int | None:
        """Inverted lists visited for each query."""
        return int(self.raw.nprobe)

    @nprobe.setter
    def nprobe(self, value: int | None) -> None:
        if value is not None:
            self.raw.nprobe = min(value, int(self.raw.nlist))

    def add(self, keys: Array) -> None:
        """Adds keys after the present ones, float32 [rows, dim]."""
        self.raw.add(prepared(keys, self.metric))
        self._changed()

    def remove(self, ids: Array) -> None:
        ids = np.ascontiguousarray(ids, np.int64)
        self.raw.remove_ids(self._faiss.IDSelectorBatch(ids))
        self._changed()

    def _changed(self) -> None:
        self.size = int(self.raw.ntotal)
        self.__dict__.pop("_products", None)

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
        candidates = self.raw.nprobe * self.size / self._filled if self._can_range else math.inf
        few = rows < _ROWS_FOR_THREADS
        threads = self.threads or (1 if few else self._faiss.omp_get_max_threads())
        with openmp_threads(threads):
            if rows * candidates < _LARGEST_RANGE:
                if threads == 1 and type(self.raw) is self._faiss.IndexIVFPQ:
                    if rows * self.raw.nprobe > _QUERIES_PER_LIST * self._filled:
                        return self._search_lists(array, k)
                    wide = k >= _LEAST_RANGED_K and self.size < _LARGEST_RANGE
                    if wide and self.metric == "l2":
                        return self._search_products(array, k)
                if k >= _LEAST_RANGED_K and candidates <= _CANDIDATES_PER_K * k:
                    return self._search_range(array, k)
            return self._search_heap(array, k)

    def _search_heap(self, queries: Array, k: int, more: int = _MORE) -> tuple[Tensor, Tensor]:
        # FAISS keeps any of several entries that are equally near, so all of them are asked for.
        width = min(k + more, self.size)
        scores = np.empty((len(queries), width), np.float32)
        found = np.empty(scores.shape, np.int64)
        # Other libraries import `faiss.contrib.torch_utils`, which replaces `search` of each class.
        inside, *out = map(self._faiss.swig_ptr, (queries, scores, found))
        self.raw.search_c(len(queries), inside, width, *out, None)
        if self._comparison.sign < 0:
            np.negative(scores, out=scores)
        if found[:, -1].min() < 0:
            scores[found < 0] = -np.inf
        nearness, ids = torch.from_numpy(scores), torch.from_numpy(found)
        if width <= k:
            return nearness, ids
        last = nearness[:, k - 1].masked_fill(ids[:, k - 1] < 0, torch.nan)
        beyond = (last == nearness[:, -1]) & (width < self.size)
        if (last == nearness[:, k]).any():
            nearness, columns = nearest_columns(nearness, k, ids)
            ids = ids.gather(-1, columns)
        nearness, ids = nearness[:, :k].contiguous(), ids[:, :k].contiguous()
        if beyond.any():
            again = self._search_heap(queries[beyond.numpy()], k, 4 * more)
            nearness[beyond], ids[beyond] = again
        return nearness, ids

    def _search_range(self, queries: Array, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest of all visited keys without a heap: half the time for a large k."""
        everything = as_distance(-3.0e38, self.metric)
        limits, distances, ids = self.raw.range_search(queries, everything)
        nearness = as_distance(distances, self.metric)
        return nearest_in_ranges(limits, nearness, lambda _, places: ids[places], k)

    def _search_products(self, queries: Array, k: int) -> tuple[Tensor, Tensor]:
        """|q|^2 + |k|^2 - 2qk, relative to the centroids' mean, by one table for each query."""
        index, squares = self._products
        distances, lists = self.raw.quantizer.search(queries, self.raw.nprobe)
        queries, index.nprobe = queries - self._centered[0], self.raw.nprobe
        limits, products, ids = index.range_search_preassigned(queries, -3.0e38, lists, distances)
        own = np.repeat(np.vecdot(queries, queries), np.diff(limits.astype(np.int64)))
        nearness = np.minimum(2.0 * products - squares[ids] - own, 0.0)
        return nearest_in_ranges(limits, nearness, lambda _, places: ids[places], k)

    @cached_property
    def _products(self) -> tuple[Any, Array]:
        """An index of inner products over the same codes, and the square of each key."""
        faiss, index, code = self._faiss, self.raw, self.raw.pq
        mean, centroids = self._centered
        quantizer = faiss.IndexFlatIP(self.dim)
        quantizer.add(centroids)
        products = faiss.IndexIVFPQ(
            quantizer, self.dim, index.nlist, code.M, code.nbits, quantizer.metric_type, False
        )
        products.pq, products.is_trained = code, True
        products.replace_invlists(index.invlists, False)
        # `range_search` takes no parameters where `faiss.contrib.torch_utils` has replaced it.
        found, every = faiss.RangeSearchResult(1), faiss.SearchParametersIVF(nprobe=index.nlist)
        index.range_search_c(1, faiss.swig_ptr(mean), 3.0e38, found, every)
        number = int(faiss.rev_swig_ptr(found.lims, 2)[1])
        ids = faiss.rev_swig_ptr(found.labels, number)
        squares = np.full(ids.max(initial=0) + 1, np.inf, np.float32)
        squares[ids] = faiss.rev_swig_ptr(found.distances, number)
        return products, squares

    @cached_property
    def _centered(self) -> tuple[Array, Array]:
        """The mean of the centroids, or 0 if they may not be moved, and they from there."""
        faiss = self._faiss
        centroids = faiss.vector_to_array(faiss.downcast_index(self.raw.quantizer).codes)
        centroids = centroids.view(np.float32).reshape(-1, self.dim)
        mean = centroids.mean(axis=0) * self._comparison.centered
        return mean, centroids - mean

    def _search_lists(self, queries: Array, k: int) -> tuple[Tensor, Tensor]:
        """Compares each list's decoded keys with all queries that visit it, by one product."""
        index, faiss, comparison = self.raw, self._faiss, self._comparison
        lists = index.quantizer.search(queries, index.nprobe)[1]
        mean, centroids = self._centered
        queries = queries - mean
        # The last is the size of list -1, which queries with NaN visit.
        sizes = np.append(list_sizes(index), 0)
        ends = sizes[lists].cumsum().reshape(lists.shape)
        starts, limits = (ends - sizes[lists]).ravel(), np.append(0, ends[:, -1])
        nearness = np.empty(limits[-1], np.float32)
        ids = np.empty(self.size, np.int64)
        firsts_of_ids = sizes.cumsum() - sizes
        order = lists.argsort(axis=None, kind="stable")
        numbers, firsts = np.unique(lists.ravel()[order], return_index=True)
        for number, visits in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            size = int(sizes[number])
            if not size:
                continue
            codes = faiss.rev_swig_ptr(index.invlists.get_codes(number), size * index.code_size)
            keys = torch.from_numpy(index.pq.decode(codes.reshape(size, -1)))
            keys += torch.from_numpy(centroids[number])
            visitors = torch.from_numpy(queries[visits // lists.shape[1]])
            scores = comparison.scores(visitors, keys, comparison.norms(keys))
            # As `sliding_window_view`, which takes a third of the time of the product.
            shape = len(nearness) - size + 1, size
            ranges = np.ndarray(shape, np.float32, nearness, strides=2 * nearness.strides)
            ranges[starts[visits]] = comparison.of_scores(scores, visitors)
            first = firsts_of_ids[number]
            ids[first : first + size] = faiss.rev_swig_ptr(index.invlists.get_ids(number), size)
        shifts, sizes = firsts_of_ids[lists] - starts.reshape(lists.shape), sizes[lists]

        # A table of all ids would take twice the memory of `nearness`, and the time to clear it.
        def ids_of(row: int, places: Array) -> Array:
            shift = np.repeat(shifts[row], sizes[row])[places - limits[row]]
            chosen: Array = ids[places + shift]
            return chosen

        return nearest_in_ranges(limits, nearness, ids_of, k)


def nearest_in_ranges(
    limits: Array, scores: Array, ids_of: Callable[[int, Array], Array], k: int
) -> tuple[Tensor, Tensor]:
    """The k nearest of each query's range of candidates, as `Index.search` returns them."""
    limits = limits.astype(np.int64)
    width = min(k, int(np.diff(limits).max()))
    nearness = np.full((len(limits) - 1, width), -np.inf, np.float32)
    ids = np.full(nearness.shape, -1, np.int64)
    for row, (first, last) in enumerate(itertools.pairwise(limits.tolist())):
        if last - first > width:
            part = scores[first:last]
            places = np.flatnonzero(part >= np.partition(part, -width)[-width]) + first
            if len(places) > width:
                places = places[np.lexsort((ids_of(row, places), -scores[places]))[:width]]
        else:
            places = np.arange(first, last)
        nearness[row, : len(places)] = scores[places]
        ids[row, : len(places)] = ids_of(row, places)
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
