"""Chooses an index for a number of entries: exact, SQ8, or PQ where memory is short.

The thresholds were measured on hidden states (benchmarks/results/index*.json).
"""

from __future__ import annotations

import math
import os

EXACT_UP_TO = 4_000
_LEAST_LISTS = 64
_MOST_LISTS = 1 << 16
_MEMORY_SHARE = 0.5
# The bytes of a product quantiser's codes, in the order of preference.
CODES = (64, 48, 32, 16, 8)


def choose_factory(entries: int, dim: int, memory: int | None = None) -> str:
    """Chooses the index that "auto" stands for."""
    if entries <= EXACT_UP_TO:
        return "exact"
    memory = available_memory() if memory is None else memory
    lists = choose_lists(entries)
    if entries * (dim + 8) <= memory * _MEMORY_SHARE:
        return f"IVF{lists},SQ8"
    for codes in CODES:
        if dim % codes == 0 and entries * (codes + 8) <= memory * _MEMORY_SHARE:
            return f"IVF{lists},PQ{codes}"
    return f"IVF{lists},RaBitQ"


def choose_lists(entries: int) -> int:
    """The number of inverted lists: the power of two from 2 * sqrt(entries) on."""
    lists = 1 << max(0, math.ceil(math.log2(2.0 * math.sqrt(max(1, entries)))))
    return min(max(lists, _LEAST_LISTS), _MOST_LISTS)


def choose_train_size(entries: int, lists: int) -> int:
    """The number of keys to train on: as many for each centroid as FAISS wants."""
    return min(entries, max(64 * lists, 20_000))


def available_memory(unknown: int = 8 << 30) -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return unknown
