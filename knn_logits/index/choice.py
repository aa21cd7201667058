"""Which index suits how many entries. Numbers in, a factory string out.

The thresholds come from measurements on real hidden states (benchmarks/results/index*.json): the
exact search takes a third of a millisecond for each thousand entries of 256 numbers (8 queries, one
thread), so that it does not matter up to a few thousand; scalar quantisation has the best recall
for its speed and a tenth of the build time of product quantisation; where memory does not allow it,
product quantisation takes a quarter of the bytes.
"""

from __future__ import annotations

import math
import os

EXACT_UP_TO = 4_000
_LEAST_LISTS = 64
_MOST_LISTS = 1 << 16
_MEMORY_SHARE = 0.5


def choose_factory(entries: int, dim: int, memory: int | None = None) -> str:
    """The index that "auto" stands for.

    Args:
        entries: Keys to index.
        dim: Their length.
        memory: Bytes at hand; None asks the machine.

    Returns:
        "exact" or a FAISS factory string.
    """
    if entries <= EXACT_UP_TO:
        return "exact"
    memory = _available_memory() if memory is None else memory
    lists = choose_lists(entries)
    if entries * (dim + 8) <= memory * _MEMORY_SHARE:
        return f"IVF{lists},SQ8"
    for codes in (64, 48, 32, 16, 8):
        if dim % codes == 0 and entries * (codes + 8) <= memory * _MEMORY_SHARE:
            return f"IVF{lists},PQ{codes}"
    return f"IVF{lists},RaBitQ"


def choose_lists(entries: int) -> int:
    """Inverted lists for a number of entries: the power of two nearest to 2 * sqrt(entries)."""
    lists = 1 << max(0, round(math.log2(2.0 * math.sqrt(max(1, entries)))))
    return min(max(lists, _LEAST_LISTS), _MOST_LISTS)


def choose_train_size(entries: int, lists: int) -> int:
    """Keys to train on: enough for every centroid, as k-means in FAISS wants them."""
    return min(entries, max(64 * lists, 20_000))


def _available_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 << 30
