"""Reads and writes FAISS's own format, for kinds of index without a plain form, only on request.

Many damaged files in this format load and answer wrongly, and such a file may name other files on
the disk. So the user has to trust the publisher.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from knn_logits.errors import DamagedError
from knn_logits.index.faiss_backend import FaissIndex
from knn_logits.index.faiss_library import faiss_module, faiss_reason, inverted_file, make_empty
from knn_logits.metrics import Metric

_LARGEST_LOOP = 1 << 24


def to_bytes(index: FaissIndex) -> bytes:
    data: bytes = faiss_module().serialize_index(index.raw).tobytes()
    return data


def from_bytes(
    data: bytes,
    factory: str,
    dim: int,
    metric: Metric,
    size: int,
    *,
    nprobe: int | None = None,
    threads: int | None = None,
) -> FaissIndex:
    """Reads an index that `to_bytes` wrote. The user must trust the publisher of the data."""
    faiss = faiss_module()
    faiss.set_deserialization_loop_limit(_LARGEST_LOOP)
    faiss.set_deserialization_vector_byte_limit(max(1 << 20, 4 * len(data)))
    try:
        index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
        like = make_empty(factory, dim, metric)
        ivf: Any = inverted_file(index)
        on_disk = ivf is not None and isinstance(
            faiss.downcast_InvertedLists(ivf.invlists), faiss.OnDiskInvertedLists
        )
        same = (index.d, index.ntotal, index.metric_type) == (dim, size, like.metric_type)
        if on_disk or not same or type(index) is not type(like):
            raise ValueError("another index")
    except (RuntimeError, ValueError, AssertionError, AttributeError, MemoryError) as error:
        raise DamagedError(
            f"the index in FAISS's format is not a {factory!r} over {size} keys "
            f"({faiss_reason(error)}); rebuild it with `knn-logits index`"
        ) from error
    return FaissIndex(index, metric, nprobe=nprobe, threads=threads)
