"""Computes the cost of a factory string from outside before FAISS sees it.

FAISS allocates lists, codebooks and rotations while it reads the string, before it has seen a key.
Some numbers end the process, and some kinds of index train for minutes on a few keys.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from knn_logits.index.choice import choose_train_size

_LONGEST = 100
_MOST_PARTS = 6
_MOST_LISTS = 1 << 20
_LARGEST_NUMBER = 1 << 16
_MOST_CODE_BITS = 16
# The most links of each vector in a graph, if the string is not the user's own.
_MOST_LINKS = 128
# The most float32 numbers that an index may learn from keys, which are 64 MB.
_FREE_NUMBERS = 1 << 24
# The most multiplications: half a minute of one core, or so many for each number of the keys.
_FREE_WORK = 1 << 38
_WORK_OF_A_NUMBER = 1 << 13
_ROUNDS = 25
_ROUNDS_OF_LISTS = 10
_ROUNDS_OF_A_ROTATION = 250
# A distance between shorter parts costs as much as one between parts of this length.
_SHORTEST_PART = 16
# A limit for a product quantiser without lists. FAISS also sorts its codes, so that near codes
# differ in few bits.
_WORK_OF_SORTING = 80_000_000

_NUMBER = "[1-9][0-9]*"
_CODES = rf"Flat|SQ(?:4|6|8|fp16|bf16)|PQ{_NUMBER}(?:x{_NUMBER})?(?:np|fs|fsr)?|RaBitQ(?:fs)?"
# The links of a graph. FAISS ends the process if there are too few.
_GRAPH = r"(?:HNSW|NSG)(?:[2-9]|[1-9][0-9]{1,2})"
_PART = re.compile(
    rf"{_CODES}|{_GRAPH}(?:_(?:{_CODES}))?|IVF{_NUMBER}(?:_{_GRAPH})?|RFlat|LSH|L2norm"
    rf"|(?:PCA|PCAR|PCAW|PCAWR|RR|ITQ|Pad|OPQ{_NUMBER}_){_NUMBER}|OPQ{_NUMBER}"
)
_TRANSFORM = re.compile(r"(OPQ|PCA|RR|ITQ|Pad)[A-Z]*(\d+)(?:_(\d+))?")
_PRODUCT = re.compile(r"PQ(\d+)(?:x(\d+))?(np|fs|fsr)?")


@dataclass
class _Cost:
    """The cost of a factory string."""

    lists: int = 1  # Number of inverted lists
    numbers: int = 0  # Number of float32 that the index learns: centroids, codebooks, rotations
    work: int = 0  # Number of multiplications to learn them


def check_demand(factory: str, dim: int, lists: int, numbers: int) -> None:
    """Refuses a factory string that is unknown, or asks for more than its index can need."""
    cost = _cost(factory, dim, 0)
    if cost.lists > min(max(lists, 1), _MOST_LISTS):
        raise ValueError("it has more lists than there can be")
    if cost.numbers > max(numbers, _FREE_NUMBERS):
        raise ValueError("its codebooks or rotations are too large")


def check_building(factory: str, dim: int, entries: int, train_size: int | None = None) -> None:
    """Refuses a factory string whose index takes too much memory or time to be built from keys."""
    check_demand(factory, dim, entries, entries * dim)
    rows = choose_train_size(entries, max(256, _cost(factory, dim, 0).lists))
    cost = _cost(factory, dim, min(entries, train_size or rows))
    if cost.work > max(_FREE_WORK, entries * dim * _WORK_OF_A_NUMBER):
        raise ValueError("it takes too long to train")
    links = [int(number) for number in re.findall(r"(?:HNSW|NSG)(\d+)", factory)]
    if max(links, default=0) > _MOST_LINKS:
        raise ValueError("its graph has too many links")


def fewest_keys(factory: str) -> int:
    """The fewest keys that an index can learn from: one for each list, and one for each code."""
    lists = math.prod(int(number) for number in re.findall(r"\bIVF(\d{1,18})", factory))
    bits = [int(size or 8) for size in re.findall(r"\bPQ\d+(?:x(\d{1,2}))?(?!\w*fs)", factory)]
    return max([lists, *(1 << bit_count for bit_count in bits)])


def _cost(factory: str, dim: int, rows: int) -> _Cost:
    if len(factory) > _LONGEST:
        raise ValueError("it is too long")
    parts = factory.split(",")
    if len(parts) > _MOST_PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError("it is not of a kind that is known to be safe")
    numbers = [int(number) for number in re.findall(r"\d+", re.sub(r"IVF\d+", "", factory))]
    if max(numbers, default=0) > _LARGEST_NUMBER:
        raise ValueError("a number in it is too large")
    cost, width = _Cost(), dim
    for part in parts:
        transform, product = _TRANSFORM.fullmatch(part), _PRODUCT.search(part)
        if transform is not None:
            kind, first, second = transform.groups()
            wide = width if kind == "OPQ" else int(first)
            wide = int(second) if second else wide
            if wide > 2 * dim:
                raise ValueError("it makes vectors longer")
            if kind == "OPQ":
                cost.work += _ROUNDS_OF_A_ROTATION * _clustering(rows, 8, int(first), wide)
            if kind != "Pad":
                cost.numbers += width * wide
                cost.work += max(width, wide) ** 3
            width = wide
        elif part.startswith("IVF"):
            lists = int(part[3:].partition("_")[0])
            cost.lists *= lists
            cost.numbers += lists * width
            cost.work += _ROUNDS_OF_LISTS * min(rows, 256 * lists) * lists * width
        elif product is not None:
            bits = int(product[2] or 8)
            if bits > _MOST_CODE_BITS:
                raise ValueError("its codes have too many bits")
            cost.numbers += width << bits
            cost.work += _ROUNDS * _clustering(rows, bits, int(product[1]), width)
            if len(parts) == 1 and part.startswith("PQ") and product[3] is None:
                cost.work += int(product[1]) * _WORK_OF_SORTING << bits
    return cost


def _clustering(rows: int, bits: int, parts: int, width: int) -> int:
    """The multiplications of one round of k-means on each part of a vector."""
    length = max(math.ceil(width / parts), _SHORTEST_PART)
    return min(rows, 256 << bits) * parts * length << bits
