"""Works out how many bytes a datastore takes on the disk, in memory and on a GPU. It times nothing.

The rules follow what other modules do with the bytes: `store/writer.py` and `index/plain.py`
for the files, `opening.py` and `building/indexing.py` for the memory.
"""

from __future__ import annotations

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
_PROBES, _PROBED = 8, 8
# The numbers of keys that are read at once as float32 while an index is filled.
_KEYS_AT_ONCE = 65_536
# FAISS reserves so much of a GPU's memory for what it computes.
_FAISS_ON_GPU = 1536 << 20


@dataclass(frozen=True)
class Extent:
    """How large a datastore is, whatever its index.

    Attributes:
        entries: Number of entries.
        tokens: Number of tokens.
        documents: Number of documents.
        dim: Length of a key.
        dtype: Precision of the stored keys.
        metric: How keys are compared.
        table_bytes: Size of the table of documents.
        fixed: Number of tokens of the canary's text.
    """

    entries: int
    tokens: int
    documents: int
    dim: int
    dtype: str
    metric: Metric
    table_bytes: int
    fixed: int = 0


def resolved(config: IndexConfig, entries: int, dim: int) -> str:
    """The factory string that an index of so many keys will have."""
    return choose_factory(entries, dim) if config.factory == "auto" else config.factory


def store_bytes(extent: Extent, config: IndexConfig) -> int:
    """Size of a datastore's folder, without a gate or clusters, which are made later."""
    keys = extent.entries * extent.dim * np.dtype(extent.dtype).itemsize
    asked, found = min(_PROBES, extent.entries), min(_PROBED, extent.entries)
    probe = 4 * asked * extent.dim + 12 * asked * found
    return int(
        keys
        + _HEADER * (1 + keys // SHARD_BYTES)
        + index_bytes(config, extent.entries, extent.dim, extent.metric)
        + probe
        + _text_bytes(extent)
    )


def bare_bytes(extent: Extent) -> int:
    """Size of the folder of a datastore without keys, which has a suffix index of its text."""
    return 4 * extent.entries + _HEADER + _text_bytes(extent)


def _text_bytes(extent: Extent) -> int:
    """Size of tokens, documents, canary and manifest."""
    canary = 4 * extent.fixed * (extent.dim + 1)
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
    return _index_numbers(empty, factory, entries, dim)


def _index_numbers(empty: Any, factory: str, entries: int, dim: int) -> int:
    from knn_logits.index.faiss_library import inverted_file

    ivf = inverted_file(empty)
    if ivf is None:
        return int(entries * empty.sa_code_size())
    lists = int(ivf.nlist)
    learnt = 4 * ivf.d * (lists + (int(ivf.pq.ksub) if hasattr(ivf, "pq") else 2))
    learnt += 4 * dim * ivf.d if int(ivf.d) != dim or factory.startswith("OPQ") else 0
    return int(entries * (int(ivf.code_size) + 8) + learnt + 8 * lists)


def resident_bytes(extent: Extent, factory: str) -> int:
    """Memory of an open index with its values, without the model and the program.

    An exact index holds the keys in float32. Any other holds codes and ids.
    """
    values = 4 * extent.entries
    if factory == "exact":
        return 4 * extent.entries * (extent.dim + 1) + values
    from knn_logits.index.faiss_library import make_empty

    empty = make_empty(factory, extent.dim, extent.metric)
    return _index_numbers(empty, factory, extent.entries, extent.dim) + values


def opening_bytes(extent: Extent, factory: str) -> int:
    """Memory at the moment of opening, which is the most that searching ever takes.

    The file of an index is mapped while FAISS's lists are filled from it. Its pages count until
    then, though the system may take them back. An exact index subtracts the mean from its keys,
    which makes a second copy.
    """
    values = 4 * extent.entries
    return 2 * (resident_bytes(extent, factory) - values) + values


def building_bytes(extent: Extent, factory: str, train_size: int | None = None) -> int:
    """The most memory that making an index takes, without the model and the program.

    An index learns from a sample of keys in float32, which its training copies once. A finished
    index is copied to arrays in order to be written.
    """
    if factory == "exact":
        return opening_bytes(extent, factory)
    batch = 4 * extent.dim * _KEYS_AT_ONCE
    learning = 8 * extent.dim * trained(extent, factory, train_size)
    return max(learning, 2 * resident_bytes(extent, factory)) + batch


def trained(extent: Extent, factory: str, train_size: int | None = None) -> int:
    """Number of keys that an index learns from."""
    from knn_logits.index.faiss_library import inverted_file, make_empty

    ivf = inverted_file(make_empty(factory, extent.dim, extent.metric))
    lists = int(ivf.nlist) if ivf is not None else 256
    return min(extent.entries, train_size or choose_train_size(extent.entries, lists))


def gpu_bytes(extent: Extent, factory: str) -> int | None:
    """Memory of an index on a GPU; None where FAISS has no form of it there."""
    if factory == "exact":
        return 4 * extent.entries * (extent.dim + 1)
    from knn_logits.index.faiss_library import faiss_module, inverted_file, make_empty

    faiss = faiss_module()
    empty = make_empty(factory, extent.dim, extent.metric)
    inner = inverted_file(empty)
    kinds = (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer, faiss.IndexIVFPQ)
    if type(inner) not in kinds:
        return None
    return _index_numbers(empty, factory, extent.entries, extent.dim) + _FAISS_ON_GPU


def weights_bytes(model: nn.Module) -> int:
    """Memory of a model's weights."""
    return sum(one.numel() * one.element_size() for one in model.parameters())


def process_bytes() -> int:
    """Memory that this process holds now; 0 where the system does not say."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0
