"""Opens a datastore's index from its arrays or from the keys, and checks it with its probe."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, DamagedError, DatastoreError
from knn_logits.index import plain_arrays
from knn_logits.index.base import Index
from knn_logits.index.compact import CompactIndex, form_for
from knn_logits.index.exact import ExactIndex
from knn_logits.index.faiss_library import build_faiss
from knn_logits.index.kinds import Kind, choose_train_size
from knn_logits.locks import new_lock
from knn_logits.metrics import COMPARISONS
from knn_logits.settings.config import IndexConfig, KNNConfig, check_threads
from knn_logits.store.datastore import Datastore
from knn_logits.store.layout import PROBE_IDS, PROBE_QUERIES
from knn_logits.store.sinks import find_sink

logger = logging.getLogger(__name__)

KEYS_AT_ONCE = 65_536
_PROBE_SHARE = 0.75
# The most objects kept for a datastore: its index, indexes without some documents, and pointers.
_CACHED = 8
_T = TypeVar("_T")


def usable_device(name: torch.device | str) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"the device {name!r} is unknown; use cpu or cuda") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"the device is {device}, but PyTorch finds no such GPU; use cpu")
    return device


class Indexes:
    """The open indexes of some datastores, the latest few of each. It is safe for threads."""

    def __init__(
        self,
        device: torch.device | str = "cpu",
        threads: int | None = None,
    ) -> None:
        check_threads(threads)
        self.device = usable_device(device)
        self.threads = threads
        self._lock = new_lock(self)
        # This does not keep datastores alive. An index is closed with its datastore.
        self._made: WeakKeyDictionary[Datastore, OrderedDict[object, Any]] = WeakKeyDictionary()

    def open(self, store: Datastore, config: KNNConfig) -> Index:
        """Returns the index of a datastore, with the settings' `exclude` and `nprobe`."""
        return self.once(
            store,
            ("index", config.exclude, config.nprobe),
            lambda: open_index(
                store,
                device=self.device,
                threads=self.threads,
                without=_left_out(store, config),
            ),
        )

    def once(self, store: Datastore, name: object, make: Callable[[], _T]) -> _T:
        """Returns an object that belongs to a datastore. The first caller makes it."""
        with self._lock:
            made = self._made.setdefault(store, OrderedDict())
            slot = made.setdefault(name, _Slot())
            made.move_to_end(name)
            if len(made) > _CACHED:
                made.popitem(last=False)
        value: _T = slot.filled(make)
        return value


class _Slot:
    """A place for an object. While it is made, only those who need this one wait."""

    def __init__(self) -> None:
        self._lock = new_lock(self)
        self._content: tuple[Any] | None = None

    def filled(self, make: Callable[[], Any]) -> Any:
        with self._lock:
            if self._content is None:
                self._content = (make(),)
            return self._content[0]


def _left_out(store: Datastore, config: KNNConfig) -> Array | None:
    """The entries that no search may find, beside those of removed documents."""
    excluded = store.entries_of(config.exclude) if config.exclude else None
    # A sink is far from every other state, but its inner product with them may be the largest.
    sink = find_sink(store) if COMPARISONS[store.manifest.metric].perfect is None else None
    if sink is None:
        return excluded
    sinks = np.flatnonzero(sink.entries.numpy())
    return sinks if excluded is None else np.union1d(excluded, sinks)


def training_sample(store: Datastore, size: int, seed: int) -> Array:
    """Draws keys to train on, without replacement, float32 [min(size, entries), dim], in order."""
    size = min(size, len(store))
    ids = np.random.default_rng(seed).permutation(len(store))[:size]
    return store.keys(np.sort(ids)).astype(np.float32)


def index_from_keys(
    store: Datastore,
    factory: str,
    config: IndexConfig,
    *,
    threads: int | None = None,
    device: torch.device | str = "cpu",
) -> Index:
    """Makes an index of a datastore's keys, with `train_size` and `nprobe` of the settings."""
    manifest, size = store.manifest, len(store)
    kind = Kind(factory, manifest.dim, manifest.metric)
    batches = store.key_batches(KEYS_AT_ONCE)  # without keys this is an error
    if not kind.approximate:
        return ExactIndex.from_batches(batches, size, kind.dim, kind.metric, device)
    wanted = config.train_size or choose_train_size(size, kind.lists)
    sample = training_sample(store, wanted, config.seed)
    index = build_faiss(factory, kind.dim, kind.metric, sample, batches, threads)
    index.nprobe = config.nprobe
    return index


def kind_of(store: Datastore) -> Kind:
    """The kind of a datastore's index."""
    manifest = store.manifest
    if manifest.on_demand is not None:
        raise DatastoreError(
            f"{store.folder} stores no keys and has no index, since its keys are computed on "
            "demand: open it as Memory(model, datastore), or build it without --no-keys"
        )
    try:
        kind = Kind(manifest.index.factory, manifest.dim, manifest.metric)
    except ConfigError as error:
        raise DamagedError(
            f"the manifest of {store.folder} is wrong: {error}; rebuild it with `knn-logits index`"
        ) from error
    if kind.approximate and manifest.file("index") is None:
        raise DamagedError(f"{store.folder} has no file of its index; run `knn-logits index`")
    return kind


def open_index(
    store: Datastore,
    *,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    without: Array | None = None,
) -> Index:
    """Opens a datastore's index without removed entries, from its arrays or from the keys."""
    device = torch.device(device)
    index: Index | None = None
    if device.type == "cuda":
        index = open_compact(store, device, torch.cuda.mem_get_info(device)[0])
    if index is None:
        index = whole_index(store, device=device, threads=threads)
        check_probe(store, index)
    hidden = hidden_entries(store, without)
    if len(hidden):
        index.remove(hidden)
    return index


def hidden_entries(store: Datastore, without: Array | None) -> Array:
    """The entries that no search may find, int64 [hidden], ascending."""
    if without is None or not len(without):
        return store.removed_entries
    hidden: Array = np.union1d(store.removed_entries, without)
    return hidden


def whole_index(
    store: Datastore,
    *,
    device: torch.device | str = "cpu",
    threads: int | None = None,
) -> Index:
    """Opens the index over all entries, also removed ones."""
    kind, nprobe, saved = kind_of(store), store.manifest.index.nprobe, store.index_arrays()
    if saved is not None:
        return plain_arrays.from_arrays(saved, kind, len(store), nprobe=nprobe, threads=threads)
    return index_from_keys(store, kind.factory, IndexConfig(), device=device)


def check_probe(store: Datastore, index: Index) -> None:
    """Refuses an index whose results differ from those at its build."""
    queries, expected = store.checks.get(PROBE_QUERIES), store.checks.get(PROBE_IDS)
    if queries is None or expected is None or not expected.size:
        return
    probes = np.ascontiguousarray(queries, np.float32)
    if expected.ndim != 2 or probes.shape != (len(expected), store.manifest.dim):
        raise DamagedError(f"the probe of {store.folder} has the wrong shape; rebuild it")
    _, ids = index.search(torch.from_numpy(probes), expected.shape[1])
    shares = [
        len(set(row) & set(true)) / len(true)
        for row, true in zip(ids.tolist(), expected.tolist(), strict=True)
    ]
    # Equal keys may come in another order, and either may be missing at the end.
    if float(np.mean(shares)) < _PROBE_SHARE:
        raise DamagedError(
            f"the index of {store.folder} returns different entries than when it was built, so "
            "the index, the metric or the keys have changed: rebuild it with `knn-logits index`"
        )


# On a GPU


def open_compact(store: Datastore, device: torch.device, free: int) -> CompactIndex | None:
    """Opens a datastore's keys for an exact search on a device; None if that is not possible."""
    if not store.has_keys or store.manifest.learned is not None:
        return None
    size, dim, dtype = len(store), store.manifest.dim, store.manifest.dtype
    form = form_for(size, dim, np.dtype(dtype).itemsize, free)
    if form is None:
        logger.warning(
            "the keys of %s take %.1f GB at one byte per value, but %s has only %.1f GB free: "
            "searching with FAISS on the CPU instead",
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

    return CompactIndex(
        partial(store.key_batches, KEYS_AT_ONCE),
        size,
        dim,
        store.manifest.metric,
        device,
        dtype=getattr(torch, dtype),
        keys=keys if form == "bytes" else None,
    )
