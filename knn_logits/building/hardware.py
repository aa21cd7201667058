"""Names a machine that is large enough. It knows sizes, and no prices."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

_GIB = 1 << 30
# Memory of machines that are sold or rented, and of GPUs, in GiB.
_MEMORY = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_GPUS = (16, 24, 48, 80, 141)
# One part of an index that is spread over machines goes to a machine of this size.
_OF_MANY = 512
# A share of the memory that stays free for the system and for other programs.
_SPARE = 0.1


def machine_for(memory: int, disk: int) -> str:
    """Names the smallest usual machine, or the number of machines that share an index.

    Args:
        memory: Bytes of memory that are needed.
        disk: Bytes on the disk that are needed.
    """
    wanted = memory * (1.0 + _SPARE) / _GIB
    room = f"{_rounded(disk)} of disk"
    for size in _MEMORY:
        if wanted <= size:
            return f"{size} GB of memory, {room}"
    count = math.ceil(wanted / _OF_MANY)
    return f"{count} machines of {_OF_MANY} GB, {room} in all"


def gpu_for(memory: int) -> str:
    """Names the smallest usual GPU, or the number of them that share an index.

    Args:
        memory: Bytes of a GPU's memory that are needed.
    """
    wanted = memory * (1.0 + _SPARE) / _GIB
    for size in _GPUS:
        if wanted <= size:
            return f"{size} GB"
    largest = _GPUS[-2]
    return f"{math.ceil(wanted / largest)} × {largest} GB"


def this_machine(folder: Path) -> tuple[int, int]:
    """Returns the memory of this machine and the free space of a folder's disk, in bytes.

    Args:
        folder: A folder that need not exist yet.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        memory = 0
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return memory, shutil.disk_usage(folder).free


def is_enough(memory: int, disk: int, here: tuple[int, int]) -> bool:
    """Whether a machine has so much memory and so much space on its disk.

    Args:
        memory: Bytes of memory that are needed.
        disk: Bytes on the disk that are needed.
        here: What the machine has, from `this_machine`.
    """
    return memory * (1.0 + _SPARE) <= here[0] and disk <= here[1]


def _rounded(size: int) -> str:
    """A size with two digits, rounded up."""
    for unit, name in ((10**12, "TB"), (10**9, "GB")):
        if size >= unit:
            digits = math.ceil(10 * size / unit) / 10
            return f"{digits:g} {name}" if digits < 10 else f"{math.ceil(size / unit):,} {name}"
    return "1 GB"
