"""Bytes of a datastore on the disk, in memory and on a GPU, and the machine for them."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knn_logits.index.backend import Backend
from knn_logits.index.backends import backend
from knn_logits.index.choice import available_memory, choose_factory
from knn_logits.metrics import Metric
from knn_logits.settings.config import IndexConfig
from knn_logits.store.writer import SHARD_BYTES

# Of a file of arrays, and of the manifest.
_HEADER, _MANIFEST = 128, 2300
_PROBES, _PROBE_NEIGHBORS = 8, 8

_UNITS = ((10**12, "TB"), (10**9, "GB"))
# Memory of machines and of GPUs that are sold or rented, in GiB.
_MACHINES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_GPUS = (16, 24, 48, 80, 141)
# An index that is spread over machines takes machines of these sizes.
_MACHINE_OF_A_CLUSTER, _GPU_OF_A_CLUSTER = 512, 80
# A share of the memory stays free for the system and for other programs.
_SPARE = 0.1


@dataclass(frozen=True)
class Extent:
    """How large a datastore is, whatever its index."""

    entries: int
    tokens: int
    documents: int
    dim: int
    dtype: str
    metric: Metric
    table_bytes: int  # size of the table of documents
    canary: int = 0  # number of tokens of the canary's text


def resolved(config: IndexConfig, entries: int, dim: int) -> str:
    """The factory string that an index of so many keys will have."""
    return choose_factory(entries, dim) if config.factory == "auto" else config.factory


def store_bytes(extent: Extent, config: IndexConfig) -> int:
    """Size of a datastore's folder, without a gate or clusters, which are made later."""
    keys = extent.entries * extent.dim * np.dtype(extent.dtype).itemsize
    rows, columns = min(_PROBES, extent.entries), min(_PROBE_NEIGHBORS, extent.entries)
    probe = 4 * rows * extent.dim + 12 * rows * columns
    index = index_bytes(config, extent.entries, extent.dim, extent.metric)
    return int(keys + _HEADER * (1 + keys // SHARD_BYTES) + index + probe + _text_bytes(extent))


def text_store_bytes(extent: Extent) -> int:
    """Size of the folder of a datastore without keys, which has a suffix index of its text."""
    return 4 * extent.entries + _HEADER + _text_bytes(extent)


def _text_bytes(extent: Extent) -> int:
    canary = 4 * extent.canary * (extent.dim + 1)
    return 4 * extent.tokens + extent.table_bytes + canary + 4 * _HEADER + _MANIFEST


def index_bytes(config: IndexConfig, entries: int, dim: int, metric: Metric) -> int:
    """Size of an index's file; 0 for an index without one."""
    kind = backend(resolved(config, entries, dim), dim, metric)
    return kind.file_bytes(entries, native=config.native)


def memory_bytes(kind: Backend, entries: int, train_size: int | None = None) -> tuple[int, int]:
    """Memory of an index alone: at the moment of opening, and while it is made."""
    return 2 * kind.array_bytes(entries) + 4 * entries, kind.making_bytes(entries, train_size)


def process_bytes() -> int:
    """Memory that this process holds now; 0 where the system does not say."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def machine_for(memory: int, disk: int) -> str:
    """Names the smallest usual machine, or the number of machines that share an index."""
    unit, name = next(((n, name) for n, name in _UNITS if disk >= n), (max(disk, 1), "GB"))
    digits = math.ceil(10 * disk / unit) / 10
    room = f"{digits:g} {name}" if digits < 10 else f"{math.ceil(disk / unit):,} {name}"
    size, count = _smallest(memory, _MACHINES, _MACHINE_OF_A_CLUSTER)
    if count == 1:
        return f"{size} GB of memory, {room} of disk"
    return f"{count} machines of {size} GB, {room} of disk in all"


def gpu_for(memory: int) -> str:
    """Names the smallest usual GPU, or the number of them that share an index."""
    size, count = _smallest(memory, _GPUS, _GPU_OF_A_CLUSTER)
    return f"{size} GB" if count == 1 else f"{count} × {size} GB"


def _smallest(memory: int, sizes: tuple[int, ...], shared: int) -> tuple[int, int]:
    """The smallest size that is enough, and how many; more than the largest is shared."""
    gigabytes = memory * (1.0 + _SPARE) / (1 << 30)
    size = next((size for size in sizes if gigabytes <= size), None)
    return (shared, math.ceil(gigabytes / shared)) if size is None else (size, 1)


def this_machine(folder: Path) -> tuple[int, int]:
    """Bytes of this machine's memory, and free on the disk of a folder that need not exist."""
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return available_memory(0), shutil.disk_usage(folder).free


def is_enough(memory: int, disk: int, machine: tuple[int, int]) -> bool:
    """Whether a machine, as `this_machine` describes it, has so many bytes of memory and disk."""
    return memory * (1.0 + _SPARE) <= machine[0] and disk <= machine[1]
