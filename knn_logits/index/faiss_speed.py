"""Estimates how long FAISS takes to build and to search an inverted file, from its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from knn_logits.index.choice import choose_train_size
from knn_logits.index.coarse import FEWEST_LISTS
from knn_logits.index.faiss_backend import FaissIndex
from knn_logits.index.faiss_library import assign, faiss_module, inverted_file, make_empty
from knn_logits.index.plain_arrays import has_plain_form
from knn_logits.index.speed import fastest, random_vectors, search_seconds
from knn_logits.metrics import COMPARISONS, DEFAULT_METRIC, Metric

# The most bytes of centroids and of codes that are compared with.
_CENTROIDS, _CODES = 64 << 20, 96 << 20
_VECTORS, _TRAINED = 1024, 2048
# k-means of an inverted file and of a product quantiser, as FAISS does them.
_ROUNDS, _ROUNDS_OF_CODES, _KEYS_OF_A_CENTROID = 10, 25, 256
# Queries lie where keys are, so they visit lists that are longer than the average one. On hidden
# states a visited list is so much longer (LOG.md, 2026-11-22).
_CROWDED = 1.4


def building_seconds(
    empty: Any, dim: int, entries: int, train_size: int | None, threads: int | None
) -> float:
    """Seconds to train and to fill an index like an empty one."""
    ivf = inverted_file(empty)
    lists = int(ivf.nlist) if ivf is not None else 256
    trained = min(entries, train_size or choose_train_size(entries, lists))
    seconds = (_ROUNDS * trained + entries) * _assignment_seconds(lists, dim, threads)
    quantiser = getattr(ivf, "pq", None)
    if quantiser is not None:
        # A product quantiser clusters each of its parts by itself, and the calls cost the most.
        parts, centroids = int(quantiser.M), int(quantiser.ksub)
        assignment = parts * _assignment_seconds(centroids, int(quantiser.dsub), threads)
        trained = min(trained, _KEYS_OF_A_CENTROID * centroids)
        seconds += (_ROUNDS_OF_CODES * trained + entries) * assignment
    return seconds


def _assignment_seconds(lists: int, dim: int, threads: int | None) -> float:
    """Seconds to find a vector's nearest centroid."""
    centroids = random_vectors(max(1, min(lists, _CENTROIDS // (4 * dim))), dim)
    vectors = random_vectors(max(64, min(_VECTORS, _CENTROIDS // (64 * dim))), dim, seed=1)
    spent = fastest(lambda: assign(centroids, vectors, metric=DEFAULT_METRIC, threads=threads))
    return spent / len(vectors) * lists / len(centroids)


def query_seconds(
    factory: str, entries: int, dim: int, metric: Metric, k: int, rows: Sequence[int], nprobe: int
) -> list[float] | None:
    """Seconds of searches on one thread, in a small index whose lists have real lengths."""
    empty = make_empty(factory, dim, metric)
    real = inverted_file(empty)
    if real is None or not has_plain_form(empty):
        return None
    total, dim, width = int(real.nlist), int(real.d), int(real.code_size)
    nprobe = min(nprobe, total)
    length = max(1, round(_CROWDED * entries / total))
    filled = max(1, min(length, _CODES // (width * nprobe)))
    # A graph over more centroids, which distances have, hardly takes longer to search.
    lists = max(nprobe, min(total, FEWEST_LISTS - 1, _CODES // (width * filled)))
    # A rotation before the lists costs next to nothing.
    kind = factory[factory.index("IVF") :].replace(f"IVF{total}", f"IVF{lists}", 1)
    small = _filled(kind, dim, filled)
    index = FaissIndex(small, metric, nprobe=nprobe, threads=1)
    seconds = [search_seconds(index, count, k) * length / filled for count in rows]
    if not COMPARISONS[metric].centered and total > lists:
        size = min(total, _CENTROIDS // (4 * dim))
        centroids = FaissIndex(make_empty("Flat", dim, metric), metric, threads=1)
        centroids.add(random_vectors(size, dim))
        for place, count in enumerate(rows):
            seconds[place] += search_seconds(centroids, count, nprobe) * total / size
    return seconds


def _filled(factory: str, dim: int, length: int) -> Any:
    """An inverted file whose lists all hold so many codes."""
    faiss = faiss_module()
    inner = make_empty(factory, dim, DEFAULT_METRIC)
    # FAISS trains no centroids where there are enough of them. Where they lie does not matter.
    inner.quantizer.add(random_vectors(int(inner.nlist), dim))
    if hasattr(inner, "pq"):
        inner.pq.cp.niter = 1
    keys = random_vectors(_TRAINED, dim, seed=2)
    inner.train(keys)
    codes = np.empty((_TRAINED, int(inner.code_size)), np.uint8)
    first = np.zeros(_TRAINED, np.int64)
    inner.encode_vectors(_TRAINED, *map(faiss.swig_ptr, (keys, first, codes)))
    codes = np.resize(codes, (length, codes.shape[1]))
    for number in range(int(inner.nlist)):
        ids = np.arange(number * length, (number + 1) * length, dtype=np.int64)
        inner.invlists.add_entries(number, length, faiss.swig_ptr(ids), faiss.swig_ptr(codes))
    inner.ntotal = int(inner.nlist) * length
    return inner
