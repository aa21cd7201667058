"""What a factory string from outside may ask for. It knows strings and numbers, not FAISS.

FAISS takes the memory for lists and codebooks while it reads the string, before it has seen a key,
and some numbers in it end the process.
"""

from __future__ import annotations

import math
import re

_LONGEST = 100
_MOST_PARTS = 6
_MOST_LISTS = 1 << 20
_LARGEST_NUMBER = 1 << 16
_MOST_CODE_BITS = 16
# Of float32: 256 MB.
_LARGEST_CODEBOOKS = 1 << 26

_NUMBER = r"[1-9][0-9]*"
_CODES = rf"Flat|SQ(?:4|6|8|fp16|bf16)|PQ{_NUMBER}(?:x{_NUMBER})?(?:np|fs|fsr)?|RaBitQ(?:fs)?"
# Links of a graph: FAISS ends the process when there are too few.
_GRAPH = r"(?:HNSW|NSG)(?:[2-9]|[1-9][0-9]{1,2})"
_PART = re.compile(
    rf"{_CODES}|{_GRAPH}(?:_(?:{_CODES}))?|IVF{_NUMBER}(?:_{_GRAPH})?|RFlat|LSH|L2norm"
    rf"|(?:OPQ|PCA|PCAR|PCAW|PCAWR|RR|ITQ|Pad){_NUMBER}(?:_{_NUMBER})?"
)


def check_demand(factory: str, dim: int, lists: int) -> None:
    """Refuses a factory string that is unknown, or asks for more than its index can need.

    Args:
        factory: As a manifest names it.
        dim: Length of a key.
        lists: Inverted lists that there can be, at most.

    Raises:
        ValueError: saying what is wrong.
    """
    if len(factory) > _LONGEST:
        raise ValueError("it is too long")
    parts = factory.split(",")
    if len(parts) > _MOST_PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError("it is not of a kind that is known to be safe")
    asked = [int(number) for number in re.findall(r"IVF(\d+)", factory)]
    if math.prod(asked) > min(max(lists, 1), _MOST_LISTS):
        raise ValueError("more lists than there can be")
    others = [int(number) for number in re.findall(r"\d+", re.sub(r"IVF\d+", "", factory))]
    if max(others, default=0) > _LARGEST_NUMBER:
        raise ValueError("a number that is too large")
    bits = [int(number) for number in re.findall(r"\dx(\d+)", factory)]
    if max(bits, default=0) > _MOST_CODE_BITS:
        raise ValueError("codes of too many bits")
    if "PQ" in factory and max([dim, *others]) << max([8, *bits]) > _LARGEST_CODEBOOKS:
        raise ValueError("codebooks that are too large")
