"""Counts the bytes of a datastore on the disk, in memory and on a GPU; names a machine for them.

The rules follow `store/writer.py` and `index/plain.py` for files, `index/opening.py` for memory.
"""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from knn_logits.index.choice import choose_factory, choose_train_size
from knn_logits.settings.config import IndexConfig, Metric
from knn_logits.store.writer import SHARD_BYTES

# Of a file of arrays, and of the manifest.
_HEADER, _MANIFEST = 128, 2300
_PROBES, _PROBE_NEIGHBORS = 8, 8
# So many keys are read at once, as float32, while an index is filled.
_KEYS_AT_ONCE = 65_536
# FAISS reserves so much of a GPU's memory for what it computes.
_FAISS_ON_GPU = 1536 << 20

_GIB = 1 << 30
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
    factory = resolved(config, entries, dim)
    if factory == "exact":
        return 0
    from knn_logits.index import plain
    from knn_logits.index.faiss_library import make_empty

    empty = make_empty(factory, dim, metric)
    if not plain.has_plain_form(empty):
        return int(entries * (empty.sa_code_size() + 8)) if config.native else 0
    return _array_bytes(empty, factory, entries, dim)


def _array_bytes(empty: Any, factory: str, entries: int, dim: int) -> int:
    from knn_logits.index.faiss_library import inverted_file

    ivf = inverted_file(empty)
    if ivf is None:
        return int(entries * empty.sa_code_size())
    lists = int(ivf.nlist)
    learned = 4 * ivf.d * (lists + (int(ivf.pq.ksub) if hasattr(ivf, "pq") else 2))
    learned += 4 * dim * ivf.d if int(ivf.d) != dim or factory.startswith("OPQ") else 0
    return int(entries * (int(ivf.code_size) + 8) + learned + 8 * lists)


def resident_bytes(extent: Extent, factory: str) -> int:
    """Memory of an open index with its values, without the model and the program."""
    values = 4 * extent.entries
    if factory == "exact":
        return 4 * extent.entries * (extent.dim + 1) + values
    from knn_logits.index.faiss_library import make_empty

    empty = make_empty(factory, extent.dim, extent.metric)
    return _array_bytes(empty, factory, extent.entries, extent.dim) + values


def opening_bytes(extent: Extent, factory: str) -> int:
    """Memory at the moment of opening, which is the most that searching ever takes.

    The mapped file of an index counts until FAISS's lists are filled from it. An exact index
    subtracts the mean from its keys, which makes a second copy.
    """
    values = 4 * extent.entries
    return 2 * (resident_bytes(extent, factory) - values) + values


def building_bytes(extent: Extent, factory: str, train_size: int | None = None) -> int:
    """The most memory that making an index takes, without the model and the program.

    Training copies its sample once, and a finished index is copied to arrays to be written.
    """
    if factory == "exact":
        return opening_bytes(extent, factory)
    from knn_logits.index.faiss_library import inverted_file, make_empty

    ivf = inverted_file(make_empty(factory, extent.dim, extent.metric))
    lists = int(ivf.nlist) if ivf is not None else 256
    rows = min(extent.entries, train_size or choose_train_size(extent.entries, lists))
    training = 8 * extent.dim * rows
    return max(training, 2 * resident_bytes(extent, factory)) + 4 * extent.dim * _KEYS_AT_ONCE


def gpu_bytes(extent: Extent, factory: str) -> int | None:
    """Memory of an index on a GPU; None where FAISS has no form of it there."""
    if factory == "exact":
        return 4 * extent.entries * (extent.dim + 1)
    from knn_logits.index.faiss_library import faiss_module, inverted_file, make_empty

    faiss = faiss_module()
    empty = make_empty(factory, extent.dim, extent.metric)
    kinds = (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer, faiss.IndexIVFPQ)
    if type(inverted_file(empty)) not in kinds:
        return None
    return _array_bytes(empty, factory, extent.entries, extent.dim) + _FAISS_ON_GPU


def weights_bytes(model: nn.Module) -> int:
    """Memory of a model's weights."""
    return sum(weights.numel() * weights.element_size() for weights in model.parameters())


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
    gigabytes = memory * (1.0 + _SPARE) / _GIB
    room = f"{_rounded(disk)} of disk"
    size = next((size for size in _MACHINES if gigabytes <= size), None)
    if size is not None:
        return f"{size} GB of memory, {room}"
    count = math.ceil(gigabytes / _MACHINE_OF_A_CLUSTER)
    return f"{count} machines of {_MACHINE_OF_A_CLUSTER} GB, {room} in all"


def gpu_for(memory: int) -> str:
    """Names the smallest usual GPU, or the number of them that share an index."""
    gigabytes = memory * (1.0 + _SPARE) / _GIB
    size = next((size for size in _GPUS if gigabytes <= size), None)
    if size is not None:
        return f"{size} GB"
    return f"{math.ceil(gigabytes / _GPU_OF_A_CLUSTER)} × {_GPU_OF_A_CLUSTER} GB"


def this_machine(folder: Path) -> tuple[int, int]:
    """Bytes of this machine's memory, and free on the disk of a folder that need not exist."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        memory = 0
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return memory, shutil.disk_usage(folder).free


def is_enough(memory: int, disk: int, machine: tuple[int, int]) -> bool:
    """Whether a machine, as `this_machine` describes it, has so many bytes of memory and disk."""
    return memory * (1.0 + _SPARE) <= machine[0] and disk <= machine[1]


def _rounded(size: int) -> str:
    """A size with two digits, rounded up."""
    for unit, name in ((10**12, "TB"), (10**9, "GB")):
        if size >= unit:
            digits = math.ceil(10 * size / unit) / 10
            return f"{digits:g} {name}" if digits < 10 else f"{math.ceil(size / unit):,} {name}"
    return "1 GB"
