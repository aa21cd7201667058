"""Opens a datastore's index from its arrays or from the keys, without what no search may find."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, DamagedError, DatastoreError
from knn_logits.index import plain_arrays
from knn_logits.index.base import Index
from knn_logits.index.compact import CompactIndex, form_for
from knn_logits.index.exact import ExactIndex
from knn_logits.index.faiss_library import build_faiss
from knn_logits.index.kinds import Kind, choose_train_size
from knn_logits.locks import Copies, cached_property, new_lock
from knn_logits.metrics import COMPARISONS
from knn_logits.settings.config import IndexConfig, KNNConfig, check_threads
from knn_logits.store.datastore import Datastore
from knn_logits.store.layout import CANARY_KEYS

logger = logging.getLogger(__name__)

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

    def __init__(self, device: torch.device | str = "cpu", threads: int | None = None) -> None:
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
                store, device=self.device, threads=self.threads, without=_left_out(store, config)
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
    batches = store.key_batches()  # without keys this is an error
    if not kind.approximate:
        return ExactIndex.from_batches(batches, size, kind.dim, kind.metric, device)
    wanted = config.train_size or choose_train_size(size, kind.lists)
    sample = training_sample(store, wanted, config.seed)
    index = build_faiss(factory, kind.dim, kind.metric, sample, batches, threads)
    index.nprobe = config.nprobe
    return index


def kind_of(store: Datastore) -> Kind:
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
    store: Datastore, *, device: torch.device | str = "cpu", threads: int | None = None
) -> Index:
    """Opens the index over all entries, also removed ones."""
    kind, nprobe, saved = kind_of(store), store.manifest.index.nprobe, store.index_arrays
    if saved is not None:
        return plain_arrays.from_arrays(saved, kind, len(store), nprobe=nprobe, threads=threads)
    return index_from_keys(store, kind.factory, IndexConfig(), device=device)


# On a GPU


def open_compact(store: Datastore, device: torch.device, free: int) -> CompactIndex | None:
    """Opens a datastore's keys for an exact search on a device; None if that is not possible."""
    if not store.has_keys or store.manifest.learned is not None:
        return None
    size, dim, dtype = len(store), store.manifest.dim, store.manifest.dtype
    form = form_for(size, dim, np.dtype(dtype).itemsize, free)
    if form is None:
        logger.warning(
            f"the keys of {store.folder} take {size * dim / 1e9:.1f} GB at one byte per value, but "
            f"{device} has only {free / 1e9:.1f} GB free: searching with FAISS on the CPU instead"
        )
        return None
    # An index must not keep its datastore alive.
    owner = weakref.ref(store)

    def keys(ids: Array) -> Array:
        opened = owner()
        assert opened is not None
        return opened.keys(ids)

    return CompactIndex(
        store.key_batches,
        size,
        dim,
        store.manifest.metric,
        device,
        dtype=getattr(torch, dtype),
        keys=keys if form == "bytes" else None,
    )


# Attention sinks
#
# The state after a text's first token is then nearly the same for every word (Xiao et al. 2024),
# and would let every text vote for the usual second token of the documents.

# The least distance of a sink from the states within a text, as a multiple of that between these.
# SmolLM2: 15 and more. Models without a sink: up to 1.1.
_APART = 4.0
# A state is a sink within this share of the usual squared distance between sink and other states.
_WITHIN = 0.4


@dataclass(frozen=True)
class Sink:
    """Where the sink states of a model lie."""

    center: Tensor  # float32 [dim]
    radius: float  # the largest squared distance of a sink state from the center
    entries: Tensor  # bool [entries], whose key is the state after a single token

    def hides(self, states: Tensor, ids: Tensor) -> Tensor:
        """Which entries do not vote, bool [rows, k]: sinks, and all that a sink state found."""
        center, entries = self._copies.at(ids.device)
        apart = states.to(ids.device) - center
        asks = apart.square().sum(dim=-1, keepdim=True) <= self.radius
        return entries[ids.clamp(min=0)] | asks

    @cached_property
    def _copies(self) -> Copies:
        return Copies(self.center, self.entries)


def find_sink(store: Datastore) -> Sink | None:
    """The sink states of the model that built a datastore, if it has any."""
    canary = store.checks.get(CANARY_KEYS)
    if canary is None or len(canary) < 4 or store.manifest.pairs is not None:
        return None
    first, rest = torch.from_numpy(canary[:1]).double(), torch.from_numpy(canary[1:]).double()
    usual = float(torch.pdist(rest).square().median())
    distances = torch.cdist(first, rest).square()
    if float(distances.min()) <= _APART * usual:
        return None
    entries = torch.zeros(len(store), dtype=torch.bool)
    if store.manifest.learned is None:
        windows = store.manifest.windows
        entries[store.contexts.first_states(windows.window, windows.stride)] = True
    return Sink(first[0].float(), _WITHIN * float(distances.median()), entries)
