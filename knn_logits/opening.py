"""Opening a datastore's index: from its arrays, or from the keys; checked by its probe."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.config import IndexConfig, KNNConfig, Metric
from knn_logits.datastore.layout import PROBE_DISTANCES, PROBE_IDS, PROBE_QUERIES
from knn_logits.datastore.store import Datastore
from knn_logits.errors import DamagedError, DatastoreError
from knn_logits.index.base import Index
from knn_logits.index.demand import check_building
from knn_logits.index.exact import ExactIndex

logger = logging.getLogger(__name__)

_KEYS_AT_ONCE = 65_536
_PROBE_FOUND = 0.75
# Of one datastore: its whole index, some that leave documents out, and the pointers for each.
_KEPT = 6
_T = TypeVar("_T")


class Indexes:
    """The open indexes of some datastores, each opened once. Safe for threads.

    An index that leaves documents out, or visits another number of lists, is another one; of these
    the latest few are kept.

    Args:
        device: Where to search; FAISS moves there when faiss-gpu is installed.
        threads: OpenMP threads for searches; None takes one for small batches.
        native: Read indexes in FAISS's own format; see `open_index`.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        *,
        native: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.threads = threads
        self.native = native
        self._lock = threading.Lock()
        # What is open is closed with its datastore, which this does not keep alive.
        self._made: WeakKeyDictionary[Datastore, OrderedDict[object, Any]] = WeakKeyDictionary()

    def open(self, store: Datastore, config: KNNConfig) -> Index:
        """The index of a datastore, as `exclude` and `nprobe` of the settings want it.

        Raises:
            DamagedError: when the index's arrays do not belong to it.
            DatastoreError: when there is neither an index file nor keys.
        """
        return self.once(
            store,
            ("index", config.exclude, config.nprobe),
            lambda: open_index(
                store,
                device=self.device,
                threads=self.threads,
                native=self.native,
                without=store.entries_of(config.exclude) if config.exclude else None,
            ),
        )

    def once(self, store: Datastore, what: object, make: Callable[[], _T]) -> _T:
        """What is made of a datastore and serves all who search it, made for the first of them.

        Args:
            store: The datastore.
            what: Its name, and the settings that it depends on.
            make: Makes it; it must not keep the datastore alive.
        """
        with self._lock:
            known = self._made.setdefault(store, OrderedDict())
            if what not in known:
                known[what] = make()
                if len(known) > _KEPT:
                    known.popitem(last=False)
            known.move_to_end(what)
            found: _T = known[what]
            return found


def training_sample(store: Datastore, size: int, seed: int) -> Array:
    """Keys to train an index on, drawn without replacement.

    Returns:
        float32 [min(size, entries), dim], in the entries' order.
    """
    size = min(size, len(store))
    ids = np.random.default_rng(seed).permutation(len(store))[:size]
    return store.keys(np.sort(ids)).astype(np.float32)


def index_from_keys(
    store: Datastore, factory: str, config: IndexConfig, *, threads: int | None = None
) -> Index:
    """Builds an index over a datastore's keys.

    Args:
        store: A datastore with keys.
        factory: "exact" or a FAISS factory string ("auto" is resolved before).
        config: Training size and seed.
        threads: OpenMP threads; None leaves FAISS's own choice.

    Raises:
        ConfigError: when FAISS cannot make such an index for these keys.
    """
    batches = store.key_batches(_KEYS_AT_ONCE)
    metric = store.manifest.metric
    if factory == "exact":
        return ExactIndex.from_batches(batches, len(store), store.manifest.dim, metric)
    from knn_logits.index.choice import choose_train_size
    from knn_logits.index.faiss_backend import build_faiss, inverted_file, make_empty

    size = config.train_size
    if size is None:
        ivf = inverted_file(make_empty(factory, store.manifest.dim, metric))
        size = choose_train_size(len(store), int(ivf.nlist) if ivf is not None else 256)
    sample = training_sample(store, size, config.seed)
    return build_faiss(factory, store.manifest.dim, metric, sample, batches, threads)


def open_index(
    store: Datastore,
    *,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    native: bool = False,
    without: Array | None = None,
) -> Index:
    """Opens the index of a datastore: from its arrays, or from the keys where it has none.

    Entries of removed documents are taken out of it.

    Args:
        store: The datastore.
        device: Where to search; FAISS moves there when faiss-gpu is installed.
        threads: OpenMP threads for searches.
        native: Read an index in FAISS's own format, which cannot be checked: for a datastore
            whose publisher is trusted.
        without: Entries that are taken out as well, in memory only; None takes out no others.

    Raises:
        DamagedError: when the index's arrays do not belong to it.
        DatastoreError: when there is neither an index file nor keys.
    """
    device = torch.device(device)
    index = whole_index(store, device=device, threads=threads, native=native)
    _check_probe(store, index)
    hidden = hidden_entries(store, without)
    if len(hidden):
        index.remove(hidden)
    if store.manifest.index.factory == "exact" or device.type != "cuda":
        return index
    from knn_logits.index.faiss_backend import FaissIndex, to_gpu

    assert isinstance(index, FaissIndex)
    return to_gpu(index, device)


def hidden_entries(store: Datastore, without: Array | None) -> Array:
    """int64, ascending: the entries that no search may find, removed ones and others."""
    if without is None or not len(without):
        return store.removed_entries
    found: Array = np.union1d(store.removed_entries, without)
    return found


def whole_index(
    store: Datastore,
    *,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    native: bool = False,
) -> Index:
    """The index over every entry, removed ones too; see `open_index`."""
    record, size, dim = store.manifest.index, len(store), store.manifest.dim
    metric: Metric = store.manifest.metric
    if record.factory == "exact":
        batches = store.key_batches(_KEYS_AT_ONCE)
        return ExactIndex.from_batches(batches, size, dim, metric, device)
    from knn_logits.index import faiss_backend, plain

    saved = store.index_arrays()
    if saved is not None:
        return plain.from_arrays(
            saved, record.factory, dim, metric, size, nprobe=record.nprobe, threads=threads
        )
    data = store.native_index() if native else None
    if data is not None:
        from knn_logits.index.native import from_bytes

        return from_bytes(
            data, record.factory, dim, metric, size, nprobe=record.nprobe, threads=threads
        )
    if not store.offers_keys:
        advice = "pass --native-index if you trust its publisher" if record.native else "build it"
        raise DatastoreError(f"{store.folder} has no index in a plain form and no keys; {advice}")
    if not native:
        check_factory(store)
    logger.warning(
        "the index %s has no plain form; it is built from the keys at each opening",
        record.factory,
    )
    config = IndexConfig(record.factory, train_size=record.train_size, seed=record.seed)
    built = index_from_keys(store, record.factory, config, threads=threads)
    assert isinstance(built, faiss_backend.FaissIndex)
    return faiss_backend.FaissIndex(built.raw, metric, nprobe=record.nprobe, threads=threads)


def check_factory(store: Datastore) -> None:
    """Refuses to build a datastore's index where that might take all memory, or end the process.

    Raises:
        DamagedError: saying why.
    """
    manifest = store.manifest
    factory = manifest.index.factory
    try:
        check_building(factory, manifest.dim, len(store), manifest.index.train_size)
    except ValueError as error:
        raise DamagedError(
            f"{store.folder} names the index {factory[:40]!r}, which is not built on a stranger's "
            f"word ({error}): pass --native-index if you trust its publisher, or make another with "
            "`knn-logits index`"
        ) from error


def _check_probe(store: Datastore, index: Index) -> None:
    """Refuses an index that does not find what it found when it was built."""
    queries, expected = store.checks.get(PROBE_QUERIES), store.checks.get(PROBE_IDS)
    if queries is None or expected is None or not expected.size:
        if len(store) and store.manifest.index.factory != "exact":
            logger.warning(
                "%s has no probe, so whether its index finds what it should could not be checked: "
                "make it again with `knn-logits index`",
                store.folder,
            )
        return
    asked = np.ascontiguousarray(queries, np.float32)
    if expected.ndim != 2 or asked.shape != (len(expected), store.manifest.dim):
        raise DamagedError(f"the probe of {store.folder} has another shape; build it again")
    distances, ids = index.search(torch.from_numpy(asked), expected.shape[1])
    found = [
        len(set(row) & set(true)) / len(true)
        for row, true in zip(ids.tolist(), expected.tolist(), strict=True)
    ]
    # Equal keys may come in another order, and push one another out at the end.
    if float(np.mean(found)) < _PROBE_FOUND:
        raise DamagedError(
            f"the index of {store.folder} does not find what it found when it was built (another "
            "index, metric or keys): make it again with `knn-logits index`"
        )
    _check_distances(store, asked, distances.cpu().numpy())


def _check_distances(store: Datastore, asked: Array, found: Array) -> None:
    """Refuses an index that compares keys in another way than when it was built."""
    expected, metric = store.checks.get(PROBE_DISTANCES), store.manifest.metric
    if expected is None or expected.shape != found.shape:
        return
    # Lengths and angles can have the same neighbors, never the same distances.
    # In double precision, since squares of what a file holds can be beyond single precision.
    asked, found, expected = (one.astype(np.float64) for one in (asked, found, expected))
    scale = 1.0 if metric == "cosine" else float(np.square(asked).sum(axis=-1).mean())
    close = np.isclose(np.sort(found), np.sort(expected), rtol=1e-2, atol=1e-3 * scale)
    if float(close.mean()) < _PROBE_FOUND:
        raise DamagedError(
            f"the index of {store.folder} is not at the distances it was at when it was built "
            f"(another metric than {metric}, or other keys): make it again with `knn-logits index`"
        )
