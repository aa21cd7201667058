"""From queries to `Neighbors`: open a datastore's index, search it, look the values up."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from knn_logits.config import IndexConfig, KNNConfig, Metric
from knn_logits.datastore.layout import PROBE_DISTANCES, PROBE_IDS, PROBE_QUERIES
from knn_logits.datastore.store import Datastore
from knn_logits.distribution import log_weights
from knn_logits.errors import DamagedError, DatastoreError, MismatchError
from knn_logits.index.base import Index, pairwise
from knn_logits.index.demand import check_building
from knn_logits.index.exact import ExactIndex
from knn_logits.neighbors import Array, Neighbors, padding_distance

logger = logging.getLogger(__name__)

_KEYS_AT_ONCE = 65_536
_PROBE_FOUND = 0.75
# Keys gathered at once to refine: 256 MB of float32.
_REFINE_NUMBERS = 64 << 20


def training_sample(store: Datastore, size: int, seed: int) -> Array:
    """Keys to train an index on, drawn without replacement.

    Returns:
        float32 [min(size, entries), dim], in the entries' order.
    """
    size = min(size, len(store))
    ids = np.random.default_rng(seed).permutation(len(store))[:size]
    return store.keys(np.sort(ids)).astype(np.float32)


def build_index(
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
    built = build_index(store, record.factory, config, threads=threads)
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


class Retriever:
    """Searches one datastore.

    Args:
        store: The datastore.
        config: k, refine and nprobe.
        device: Where to search.
        threads: OpenMP threads for searches; None takes one for small batches.
        index: An index over the store's keys that is open already.
        native: Read an index in FAISS's own format; see `open_index`.

    Raises:
        DatastoreError: when `refine` is wanted and the datastore has no keys.
    """

    def __init__(
        self,
        store: Datastore,
        config: KNNConfig,
        *,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        index: Index | None = None,
        native: bool = False,
    ) -> None:
        if config.refine and not store.offers_keys:
            raise DatastoreError(f"{store.folder} has no keys, so refine is not possible")
        if config.refine:
            store.fetch_keys()
        self.store = store
        self.config = config
        self.metric: Metric = store.manifest.metric
        self.without = store.entries_of(config.exclude) if config.exclude else None
        if index is None:
            index = open_index(
                store, device=device, threads=threads, native=native, without=self.without
            )
        self.index = index
        if config.nprobe is not None and getattr(self.index, "nprobe", None) is not None:
            self.index.nprobe = config.nprobe  # type: ignore[attr-defined]
        self._values = store.values.long()
        self._array: Array = self._values.numpy()

    @property
    def follows_text(self) -> bool:
        """Whether what is found depends on the tokens before, and not on the state alone."""
        return False

    def begin_text(self) -> None:
        """Says that the next step of this thread goes on from no text before."""

    @property
    def stores(self) -> list[Datastore]:
        """What is searched."""
        return [self.store]

    def locate(self, entry: int) -> tuple[Datastore, int]:
        """The datastore of an entry that a search found, and its number there."""
        return self.store, entry

    def log_weights(self, neighbors: Neighbors) -> Tensor:
        """log w_i of the neighbors that `search` found, [rows, k]."""
        return log_weights(neighbors, self.metric, self.config.temperature)

    def search_steps(self, states: Tensor, ids: Tensor, wanted: Tensor | None = None) -> Neighbors:
        """The neighbors of one step, or of several in a row, of a batch of texts.

        Args:
            states: [rows, positions, dim], the states at the last positions of the texts.
            ids: int64 [rows, length], the texts up to the last of those positions.
            wanted: bool [rows, positions], False where nothing is looked for; None for nowhere.

        Returns:
            Neighbors of `rows * positions` queries, all rows of a position after another.
        """
        del ids  # of no interest to a search, which knows no text
        queries = states.transpose(0, 1).reshape(-1, states.shape[-1])
        return self.search_some(queries, None if wanted is None else wanted.T.reshape(-1))

    def search_some(self, queries: Tensor, wanted: Tensor | None) -> Neighbors:
        """The neighbors of those queries that are wanted, in one search; the others have none.

        Args:
            queries: [rows, dim], any floating type and device.
            wanted: bool [rows]; None for all.
        """
        if wanted is None:
            return self.search(queries)
        if bool(wanted.any()):
            found = self.search(queries[wanted.to(queries.device)])
        else:
            found = Neighbors.nothing(0)
        return found.among(wanted, self.metric)

    def search(self, queries: Tensor) -> Neighbors:
        """The neighbors of a batch of queries, in one search.

        Args:
            queries: [rows, dim], any floating type and device.

        Returns:
            Neighbors with at most k columns, on the device of the index.

        Raises:
            MismatchError: when the queries have another length than the keys.
        """
        dim = self.store.manifest.dim
        if queries.dim() != 2 or queries.shape[1] != dim:
            raise MismatchError(
                f"the model's states have {queries.shape[-1]} numbers, the keys of "
                f"{self.store.folder} have {dim}: load the model that built the datastore"
            )
        if not len(self.store):
            return Neighbors.nothing(len(queries), queries.device)
        queries = queries.detach().float()
        distances, ids = self.index.search(queries, self.config.k)
        if not ids.shape[1]:
            return Neighbors.nothing(len(queries), ids.device)
        values = self._looked_up(ids)
        if self.config.refine:
            distances = self._refined(queries.to(ids.device), ids.clamp(min=0))
            distances = distances.masked_fill(ids < 0, padding_distance(self.metric))
        return Neighbors(ids, distances, values, every_row=int(ids[:, 0].min()) >= 0)

    def _looked_up(self, ids: Tensor) -> Tensor:
        """int64 [rows, k], the values of entries; the first entry's for padding."""
        if ids.device.type == "cpu":
            return torch.from_numpy(np.take(self._array, ids.numpy(), mode="clip"))
        if self._values.device != ids.device:
            self._values = self._values.to(ids.device)
        return self._values[ids.clamp(min=0)]

    def _refined(self, queries: Tensor, ids: Tensor) -> Tensor:
        rows = max(1, _REFINE_NUMBERS // max(1, ids.shape[1] * queries.shape[1]))
        return torch.cat(list(self._refined_parts(queries, ids, rows)))

    def _refined_parts(self, queries: Tensor, ids: Tensor, rows: int) -> Iterator[Tensor]:
        for some_queries, some_ids in zip(queries.split(rows), ids.split(rows), strict=True):
            keys = torch.from_numpy(self.store.keys(some_ids.cpu().numpy())).float()
            yield pairwise(some_queries, keys.to(queries.device), self.metric)


def exact_neighbors(store: Datastore, queries: Array, k: int) -> tuple[Array, Array]:
    """The true nearest entries, streaming over the keys: what recall is measured against.

    Args:
        store: A datastore with keys.
        queries: float32 [rows, dim].
        k: Neighbors a query.

    Returns:
        distances: float32 [rows, k], nearest first.
        ids: int64 [rows, k].
    """
    metric = store.manifest.metric
    largest = metric != "l2"
    asked = torch.from_numpy(queries)
    best = torch.empty(len(queries), 0, dtype=torch.float32)
    best_ids = torch.empty(len(queries), 0, dtype=torch.int64)
    first = 0
    for batch in store.key_batches(_KEYS_AT_ONCE):
        found, ids = ExactIndex(torch.from_numpy(batch), metric).search(asked, k)
        best, best_ids = torch.cat([best, found], -1), torch.cat([best_ids, ids + first], -1)
        best, order = torch.topk(best, min(k, best.shape[1]), dim=-1, largest=largest)
        best_ids = best_ids.gather(-1, order)
        first += len(batch)
    return best.numpy(), best_ids.numpy()
