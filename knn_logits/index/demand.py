"""Which types of index FAISS may make, and what they cost, before FAISS sees their names.

FAISS allocates lists and codebooks while it reads a name, before it has seen a key. Some numbers
end the process, and some types train for minutes on a few keys.
"""

from __future__ import annotations

import math
import re

from knn_logits.index.choice import choose_train_size

_CODES = r"(?:Flat|SQ(?:4|6|8|fp16|bf16)|PQ(?P<{0}>[1-9]\d{{0,3}})(?:x(?P<{0}bits>[1-9]\d?))?"
# FAISS ends the process where a graph has a single link.
_TYPES = re.compile(
    rf"Flat|IVF(?P<lists>[1-9]\d{{0,8}}),{_CODES.format('parts')}|RaBitQ)"
    rf"|HNSW(?P<links>[2-9]|[1-9]\d{{1,2}})(?:,{_CODES.format('linked')}))?",
    re.ASCII,
)
_MOST_LISTS = 1 << 20
_MOST_CODE_BITS = 16
# The most links of each vector in a graph, if the name is not the user's own.
_MOST_LINKS = 128
# The most float32 numbers that an index may learn from keys, which are 64 MB.
_FREE_NUMBERS = 1 << 24
# The most multiplications: half a minute of one core, or this number for each number of the keys.
_FREE_WORK = 1 << 38
_WORK_OF_A_NUMBER = 1 << 13
_ROUNDS, _ROUNDS_OF_LISTS = 25, 10
# A distance between shorter parts costs as much as one between parts of this length.
_SHORTEST_PART = 16


def is_allowed(factory: str) -> bool:
    """Whether an index may have this type."""
    return _TYPES.fullmatch(factory) is not None


def check_demand(factory: str, dim: int, lists: int, numbers: int) -> None:
    """Refuses a type that is unknown, or asks for more than its index can need."""
    own_lists, _, bits = _sizes(factory)
    if own_lists > min(max(lists, 1), _MOST_LISTS):
        raise ValueError("it has more lists than there can be")
    learned = own_lists * dim + (dim << bits if bits else 0)
    if learned > max(numbers, _FREE_NUMBERS):
        raise ValueError("its codebooks are too large")


def check_building(factory: str, dim: int, entries: int, train_size: int | None = None) -> None:
    """Refuses a type whose index takes too much memory or time to be built from keys."""
    check_demand(factory, dim, entries, entries * dim)
    lists, parts, bits = _sizes(factory)
    rows = min(entries, train_size or choose_train_size(entries, max(256, lists)))
    work = _ROUNDS_OF_LISTS * min(rows, 256 * lists) * lists * dim if lists > 1 else 0
    if bits:
        # One round of k-means on each part of a vector.
        length = max(math.ceil(dim / parts), _SHORTEST_PART)
        work += _ROUNDS * min(rows, 256 << bits) * parts * length << bits
    if work > max(_FREE_WORK, entries * dim * _WORK_OF_A_NUMBER):
        raise ValueError("it takes too long to train")
    if (links := re.match(r"HNSW(\d+)", factory)) and int(links[1]) > _MOST_LINKS:
        raise ValueError("its graph has too many links")


def fewest_keys(factory: str) -> int:
    """The fewest keys that an index can learn from: one for each list, and one for each code."""
    lists, _, bits = _sizes(factory)
    return max(lists, 1 << bits)


def _sizes(factory: str) -> tuple[int, int, int]:
    """The number of lists, and of the parts of a vector and the bits of each; 0 without codes."""
    found = _TYPES.fullmatch(factory)
    if found is None:
        raise ValueError("it is not of a kind that is known to be safe")
    kind = "parts" if found["parts"] else "linked"
    parts = int(found[kind] or 0)
    bits = int(found[f"{kind}bits"] or 8) if parts else 0
    if bits > _MOST_CODE_BITS:
        raise ValueError("its codes have too many bits")
    return int(found["lists"] or 1), parts, bits
