"""How much a factory string from outside may ask for. It knows numbers, not FAISS.

FAISS takes the memory for lists and codebooks while it reads the string, before it has seen a key.
"""

from __future__ import annotations

import math
import re

_LONGEST = 100
_MOST_LISTS = 1 << 20
_LARGEST_NUMBER = 1 << 16
_MOST_CODE_BITS = 16
# Of float32: 256 MB.
_LARGEST_CODEBOOKS = 1 << 26


def check_demand(factory: str, dim: int, lists: int) -> None:
    """Refuses a factory string that asks for more than an index of its kind can need.

    Args:
        factory: As a manifest names it.
        dim: Length of a key.
        lists: Inverted lists that there can be, at most.

    Raises:
        ValueError: saying what is too much.
    """
    if len(factory) > _LONGEST or not factory.isascii():
        raise ValueError("a factory string that is too long")
    asked = [int(number) for number in re.findall(r"IVF(\d+)", factory)]
    if math.prod(asked) > min(max(lists, 1), _MOST_LISTS):
        raise ValueError("more lists than there can be")
    others = [int(number) for number in re.findall(r"\d+", re.sub(r"IVF\d+", "", factory))]
    if "IMI" in factory or max(others, default=0) > _LARGEST_NUMBER:
        raise ValueError("numbers that are too large")
    bits = [int(number) for number in re.findall(r"\dx(\d+)", factory)]
    widest = max([dim, *others])
    if max(bits, default=0) > _MOST_CODE_BITS:
        raise ValueError("codes of too many bits")
    if ("PQ" in factory or bits) and widest << max([8, *bits]) > _LARGEST_CODEBOOKS:
        raise ValueError("codebooks that are too large")
