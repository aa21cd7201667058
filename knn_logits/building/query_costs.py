"""Estimates how long a query will take, from searches in a small index of the same kind.

The small index holds random vectors. Its lists are as long as those of the real index will be, so
nearly all of a search is timed as it is. Only what does not fit is scaled: more centroids, and
lists that are too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.building.timing import usual
from knn_logits.index.exact import ExactIndex
from knn_logits.settings.config import Metric

# The most bytes of codes, of centroids and of keys in the small index.
_CODES, _CENTROIDS, _KEYS = 96 << 20, 64 << 20, 32 << 20
_TRAINED = 2048
# Batches that are timed.
_REPEATS = 15
# Queries lie where keys are, so they visit lists that are longer than the average one. On hidden
# states a visited list is so much longer (LOG.md, 2026-11-22).
CROWDED = 1.4


def usual_nprobe(factory: str) -> int:
    """The number of lists that a build usually chooses (LOG.md, 2026-11-22)."""
    if "RaBitQ" in factory:
        return 16
    return 8 if "PQ" in factory else 4


def query_seconds(
    factory: str,
    entries: int,
    dim: int,
    metric: Metric,
    *,
    k: int,
    rows: Sequence[int],
    nprobe: int | None = None,
) -> list[float] | None:
    """Estimates the seconds of searches on one thread.

    Args:
        factory: "exact" or a FAISS factory string.
        entries: Number of keys that the real index will hold.
        dim: Length of a key.
        metric: How keys are compared.
        k: Neighbors of each query.
        rows: Queries of each batch that is timed.
        nprobe: Inverted lists visited for each query; None takes what a build usually chooses.

    Returns:
        The seconds of each batch; None for a kind of index that is not measured, such as one
        with a graph.
    """
    if factory == "exact":
        held = max(1, min(entries, _KEYS // (4 * dim)))
        index = ExactIndex(torch.from_numpy(_vectors(held, dim)), metric)
        near = min(k, held)
        exact = [
            usual(lambda asked: index.search(torch.from_numpy(asked), near), _batches(count, dim))
            for count in rows
        ]
        return [seconds * entries / held for seconds in exact]
    from knn_logits.index import plain
    from knn_logits.index.coarse import FEWEST_LISTS, ListGraph
    from knn_logits.index.faiss_backend import FaissIndex
    from knn_logits.index.faiss_library import inverted_file, make_empty, openmp_threads

    empty = make_empty(factory, dim, metric)
    real = inverted_file(empty)
    if real is None or not plain.has_plain_form(empty):
        return None
    nprobe = min(nprobe or usual_nprobe(factory), int(real.nlist))
    inside, width = int(real.d), int(real.code_size)
    length = max(1, round(CROWDED * entries / int(real.nlist)))
    held = max(1, min(length, _CODES // (width * nprobe)))
    graphed = metric == "l2" and int(real.nlist) >= FEWEST_LISTS
    most = min(int(real.nlist), FEWEST_LISTS - 1 if graphed else _CENTROIDS // (4 * inside))
    lists = max(nprobe, min(most, _CODES // (width * held)))
    # A rotation before the lists costs next to nothing.
    kind = factory[factory.index("IVF") :].replace(f"IVF{int(real.nlist)}", f"IVF{lists}", 1)
    index = _filled(kind, inside, held)
    found = FaissIndex(index, "l2" if metric == "l2" else "ip", nprobe=nprobe, threads=1)
    centroids = inverted_file(index).quantizer
    # A graph over more centroids hardly takes longer to search.
    graph = ListGraph(_vectors(FEWEST_LISTS, inside)) if graphed else None
    spent = []
    for count in rows:
        batches = _batches(count, inside)
        whole = usual(lambda asked: found.search(torch.from_numpy(asked), k), batches)
        with openmp_threads(1):
            coarse = usual(lambda asked: centroids.search(asked, nprobe), batches)
            scanning = max(0.0, whole - coarse) * length / held
            if graph is None:
                coarse *= int(real.nlist) / lists
            else:
                coarse = usual(lambda asked: graph.search(asked, nprobe), batches)
        spent.append(coarse + scanning)
    return spent


def _filled(factory: str, dim: int, length: int) -> Any:
    """An inverted file whose lists all hold so many codes."""
    from knn_logits.index.faiss_library import faiss_module, make_empty

    faiss = faiss_module()
    inner = make_empty(factory, dim, "l2")
    # FAISS trains no centroids where there are enough of them. Where they lie does not matter.
    inner.quantizer.add(_vectors(int(inner.nlist), dim))
    if hasattr(inner, "pq"):
        inner.pq.cp.niter = 1
    some = _vectors(_TRAINED, dim, seed=2)
    inner.train(some)
    codes = np.empty((_TRAINED, int(inner.code_size)), np.uint8)
    first = np.zeros(_TRAINED, np.int64)
    inner.encode_vectors(_TRAINED, *map(faiss.swig_ptr, (some, first, codes)))
    codes = np.resize(codes, (length, codes.shape[1]))
    for number in range(int(inner.nlist)):
        ids = np.arange(number * length, (number + 1) * length, dtype=np.int64)
        inner.invlists.add_entries(number, length, faiss.swig_ptr(ids), faiss.swig_ptr(codes))
    inner.ntotal = int(inner.nlist) * length
    return inner


def _batches(rows: int, dim: int) -> list[Array]:
    """Batches of queries, so many that the median of their times is steady."""
    return list(_vectors(_REPEATS * rows, dim, seed=1).reshape(_REPEATS, rows, dim))


def _vectors(rows: int, dim: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)
