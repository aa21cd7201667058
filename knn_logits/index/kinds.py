"""The kinds of index, each named by a factory string: which there are, and which to choose."""

from __future__ import annotations

import math
import os
import re

from knn_logits.errors import ConfigError
from knn_logits.index.faiss_library import make_empty
from knn_logits.metrics import Metric

# FAISS makes lists and codebooks while it reads a name. Some numbers end the process, and so do
# names of some other kinds.
_FACTORY = re.compile(
    r"exact|IVF(?P<lists>[1-9]\d{0,6}),(?:Flat|SQ(?:4|6|8|fp16|bf16)|RaBitQ"
    r"|PQ(?P<parts>[1-9]\d{0,3})(?:x(?P<bits>[1-9]|1[0-2]))?)",
    re.ASCII,
)
# Only an index that needs more keys than this makes it worth knowing how many there are.
_LARGE_SAMPLE = 1 << 20

EXACT_UP_TO = 4_000
_LEAST_LISTS, _MOST_LISTS = 64, 1 << 16
_MEMORY_SHARE = 0.5
# The bytes of a product quantiser's codes, in the order of preference.
CODES = (64, 48, 32, 16, 8)


class Kind:
    """A kind of index over keys of `dim` numbers, by its factory string."""

    def __init__(self, factory: str, dim: int, metric: Metric) -> None:
        found = _FACTORY.fullmatch(factory)
        if found is None:
            raise ConfigError(
                f"there is no index type {factory[:100]!r}: use auto, exact, or a type such as "
                "IVF1024,Flat, IVF1024,SQ8 or IVF1024,PQ64"
            )
        self.factory, self.dim, self.metric = factory, dim, metric
        # Number of inverted lists, 0 without, and of the codewords of each part of a vector.
        self.lists = int(found["lists"] or 0)
        self.codewords = 1 << int(found["bits"] or 8) if found["parts"] else 0

    @property
    def approximate(self) -> bool:
        """Whether it misses neighbors, and is stored; an exact one is made of the keys."""
        return self.factory != "exact"

    def check(self, keys: int | None) -> None:
        """Refuses an index that cannot learn from a number of keys; None if it is not known yet."""
        needed = max(self.lists, self.codewords)
        if keys is not None and needed > keys:
            raise ConfigError(
                f"the index {self.factory!r} needs at least {needed:,} training keys, but there "
                f"are only {keys:,}; use --index with fewer lists, or auto, or exact"
            )
        # FAISS allocates all lists at once. The number of keys is checked again later.
        if self.approximate and (keys is not None or needed <= _LARGE_SAMPLE):
            make_empty(self.factory, self.dim, self.metric)

    def file_bytes(self, entries: int) -> int:
        """Size of the index's file; 0 for an index without one."""
        if not self.approximate:
            return 0
        code_size = int(make_empty(self.factory, self.dim, self.metric).code_size)
        learned = 4 * self.dim * (self.lists + (self.codewords or 2))
        return entries * (code_size + 8) + learned + 8 * self.lists


def choose_factory(entries: int, dim: int, memory: int | None = None) -> str:
    """Chooses the index that "auto" stands for: exact, SQ8, or PQ where memory is short.

    The thresholds were measured on hidden states (benchmarks/results/index*.json).
    """
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


def available_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 << 30  # the system does not say
