"""Chooses the form of a datastore's index on a GPU, and compares it with the stored probe."""

from __future__ import annotations

import logging
import weakref
from functools import partial

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.index.backend import Backend
from knn_logits.index.base import Index
from knn_logits.index.compact import CompactIndex, form_for
from knn_logits.metrics import as_distance
from knn_logits.store.datastore import Datastore
from knn_logits.store.layout import PROBE_DISTANCES, PROBE_QUERIES

logger = logging.getLogger(__name__)

KEYS_AT_ONCE = 65_536
# The share of the probe's queries that an index on a GPU must answer as well as the stored one.
_ANSWERED = 0.75
# The k with which an index of FAISS is compared, or its largest on the GPU.
_NEIGHBORS = 1024


def open_compact(store: Datastore, device: torch.device, free: int) -> CompactIndex | None:
    """Opens a datastore's keys for an exact search on a device."""
    if not store.has_keys or store.manifest.learned is not None:
        return None
    size, dim, dtype = len(store), store.manifest.dim, store.manifest.dtype
    form = form_for(size, dim, np.dtype(dtype).itemsize, free)
    if form is None:
        logger.warning(
            "the keys of %s take %.1f GB at one byte per value, but %s has only %.1f GB free: "
            "searching with FAISS instead of PyTorch",
            store.folder,
            size * dim / 1e9,
            device,
            free / 1e9,
        )
        return None
    # An index must not keep its datastore alive.
    owner = weakref.ref(store)

    def keys(ids: Array) -> Array:
        opened = owner()
        assert opened is not None
        return opened.keys(ids)

    index = CompactIndex(
        partial(store.key_batches, KEYS_AT_ONCE),
        size,
        dim,
        store.manifest.metric,
        device,
        dtype=getattr(torch, dtype),
        keys=keys if form == "bytes" else None,
    )
    queries, distances = store.checks.get(PROBE_QUERIES), store.checks.get(PROBE_DISTANCES)
    if queries is None or distances is None or not distances.size:
        return index
    return index if finds_as_much(index, store, queries, distances) else None


def moved(kind: Backend, index: Index, store: Datastore, device: torch.device) -> Index:
    """Moves an index to a GPU, if it has a form there that finds as much."""
    on_gpu: Index = kind.moved(index, device)
    queries = store.checks.get(PROBE_QUERIES)
    if on_gpu is index or queries is None:
        return on_gpu
    k = min(_NEIGHBORS, getattr(on_gpu, "largest_k", _NEIGHBORS))
    nearness, _ = index.search(torch.from_numpy(np.float32(queries)), k)
    expected = as_distance(nearness.numpy(), store.manifest.metric)
    return on_gpu if finds_as_much(on_gpu, store, queries, expected) else index


def finds_as_much(index: Index, store: Datastore, queries: Array, expected: Array) -> bool:
    """Whether an index on a GPU finds neighbors as near as `expected`, distances [rows, k]."""
    try:
        nearness, _ = index.search(torch.from_numpy(np.float32(queries)), expected.shape[1])
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        logger.warning("an index of %s is not used on the GPU: %s", store.folder, reason)
        return False
    on_gpu = np.sort(nearness.cpu().double().numpy())
    on_cpu = np.sort(as_distance(expected.astype(np.float64), store.manifest.metric))
    finite = on_cpu[np.isfinite(on_cpu)]
    slack = 1e-2 * np.abs(finite).mean() if finite.size else 0.0
    is_close = on_gpu.shape == on_cpu.shape and (on_gpu >= on_cpu - slack).mean() >= _ANSWERED
    if not is_close:
        logger.warning(
            "an index of %s is not used on the GPU, since its neighbors are farther than those "
            "found on the CPU",
            store.folder,
        )
    return bool(is_close)
