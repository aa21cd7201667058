"""Times the steps that an index repeats, at their best, in small indexes of random vectors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.index.base import Index

# Short work is timed so often; more often only for so many seconds.
_REPEATS, _LONG_ENOUGH = 3, 0.1
# The most bytes of keys that are compared with, and how many batches of queries.
_KEYS, _BATCHES = 32 << 20, 15


def fastest(work: Callable[[], object]) -> float:
    """The seconds that work takes on an idle machine: the best of three times."""
    return min(_seconds(work) for _ in range(_REPEATS))


def _seconds(work: Callable[[], object]) -> float:
    # Beside other programs a thread's own time is shorter than the clock's; several threads have
    # more time of their own than passes.
    began, began_work = time.perf_counter(), time.process_time()
    work()
    return min(time.perf_counter() - began, time.process_time() - began_work)


def sample_rows(entries: int, dim: int) -> int:
    """The number of keys that stand for all."""
    return max(1, min(entries, _KEYS // (4 * dim)))


def search_seconds(index: Index, rows: int, k: int) -> float:
    """The median of the seconds for so many queries, each of which is another."""
    queries = torch.from_numpy(random_vectors(_BATCHES * rows, index.dim, seed=1)).split(rows)
    first = _seconds(lambda: index.search(queries[0], k))
    queries = queries[: max(_REPEATS, int(_LONG_ENOUGH / max(first, 1e-9)))]
    for batch in queries:
        index.search(batch, k)
    return statistics.median(_seconds(partial(index.search, batch, k)) for batch in queries)


def random_vectors(rows: int, dim: int, seed: int = 0) -> Array:
    """Vectors, float32 [rows, dim], normally distributed."""
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)
