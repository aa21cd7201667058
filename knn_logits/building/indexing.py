"""Builds a datastore's index, its suffix index, and the clusters of its entries."""

from __future__ import annotations

import os

import numpy as np

from knn_logits.arrays import Array
from knn_logits.building.recall import measured
from knn_logits.engine.compatibility import needs_keys
from knn_logits.errors import ConfigError
from knn_logits.index import plain_arrays
from knn_logits.index.base import Index
from knn_logits.index.faiss_library import FaissIndex, assign, faiss_module, train_centroids
from knn_logits.index.kinds import Kind, choose_factory
from knn_logits.index.opening import index_from_keys, training_sample
from knn_logits.metrics import Metric, equivalent_temperature
from knn_logits.progress import Progress, counter, no_progress, while_running
from knn_logits.settings.config import IndexConfig, index_config, whole_number
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import Job, begin
from knn_logits.store.layout import CANARY_KEYS
from knn_logits.store.records import IndexRecord
from knn_logits.store.suffixes import suffix_order

# A larger sample hardly changes the centroids.
_SAMPLE_PER_CLUSTER = 64
# Number of keys that the mean square of a key is taken over.
_QUERIES = 256


def build_index(
    store: Datastore | str | os.PathLike[str],
    index: IndexConfig | str | None = None,
    *,
    progress: Progress = no_progress,
) -> Datastore:
    """Replaces the index of a datastore by one of another kind or metric.

    Args:
        store: A datastore with its keys, or its folder.
        index: What kind of index to build, or its factory string; "auto" chooses by the number of
            entries.
        progress: A callback that is told how far the work is.

    Returns:
        The datastore, opened again.

    Raises:
        ConfigError: when FAISS cannot make such an index for these keys.
        DatastoreError: when the datastore has no keys.
        BusyError: when another process is writing the datastore.
    """
    index = index_config(index)
    store = store if isinstance(store, Datastore) else Datastore(store)
    needs_keys(store, "`index`")
    check_index(index, store.manifest.dim, index.metric or store.manifest.metric, len(store))
    with begin(store.folder.resolve(), "index", {}) as job:
        store = Datastore(store.folder)
        old = store.manifest
        metric, gate = index.metric or old.metric, old.gate
        # The index is built under the manifest's metric, so the manifest in memory changes first.
        store.manifest = old.model_copy(update={"metric": metric})
        built, record = make_index(store, index, progress=progress)
        changed: dict[str, object] = {"stale": old.file("gate") is not None or old.settings.stale}
        gone: list[layout.Kind] = ["index"]
        if metric != old.metric:
            temperature = like_temperature(store, old.settings.temperature, old.metric)
            changed = {"stale": True, "temperature": temperature}
            gone, gate = ["index", "gate"], None  # it was fitted to distances of the old metric
        write_index(job, built, record)
        settings = old.settings.model_copy(update=changed)
        job.commit(store.manifest, without=gone, index=record, settings=settings, gate=gate)
    return Datastore(store.folder)


def build_suffixes(
    datastore: Datastore | str | os.PathLike[str], *, progress: Progress = no_progress
) -> Datastore:
    """Makes the suffix index of a datastore, which the ∞-gram needs: four bytes a token.

    It is made of the text alone, so that a datastore without keys gets one as well. Documents that
    are added or removed later are in it, or out of it, by themselves.

    Args:
        datastore: A datastore, or its folder.
        progress: Told how far the work is.

    Returns:
        The datastore, opened again.

    Raises:
        DatastoreError: when there are more tokens than such an index can name.
        BusyError: when another process is writing the datastore.
        StorageError: when the disk is full; the datastore is unchanged.
    """
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    with begin(store.folder.resolve(), "suffixes", {}) as job:
        store = Datastore(store.folder)
        if store.suffixes is not None:
            job.give_up()
            return store
        write_suffixes(job, store, progress)
        job.commit(store.manifest)
    return Datastore(store.folder)


def cluster(
    datastore: Datastore | str | os.PathLike[str],
    clusters: int,
    *,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Datastore:
    """Groups the entries of a datastore by k-means over their keys.

    RetoMaton then also follows the members of a pointer's cluster. Alon et al. (2022), section
    3.2. Keys are compared by the datastore's metric, or by the Euclidean distance where the metric
    is the inner product.

    Args:
        datastore: A datastore with its keys, or its folder.
        clusters: Number of clusters, at least 1. In the paper a cluster has about 100 entries.
        seed: Seed of the sample.
        progress: A callback that is told how far the work is.

    Returns:
        The datastore, opened again.

    Raises:
        ConfigError: when there are more clusters than entries, or the entries are of pairs.
        DatastoreError: when the datastore has no keys.
        BusyError: when another process is writing the datastore.
    """
    clusters = whole_number("clusters", clusters, 1)
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    needs_keys(store, "`index --clusters`")
    if store.manifest.pairs is not None:
        raise ConfigError("clusters are for RetoMaton, which needs a causal model: make none")
    if clusters > len(store):
        raise ConfigError(
            f"clusters must be between 1 and the number of entries ({len(store)}), not {clusters}"
        )
    IndexConfig(seed=seed)
    with begin(store.folder.resolve(), "cluster", {}) as job:
        store = Datastore(store.folder)
        metric = store.manifest.metric
        progress("centroids", 0, None)
        keys = training_sample(store, _SAMPLE_PER_CLUSTER * clusters, seed)
        centroids = train_centroids(keys, clusters, metric=metric, seed=seed)
        labels: list[Array] = []
        count = counter(progress, "clusters", len(store))
        for batch in store.key_batches():
            labels.append(assign(centroids, batch, metric=metric).astype(np.int32))
            count(len(batch))
        job.write("clusters", np.concatenate(labels))
        job.commit(store.manifest)
    return Datastore(store.folder)


def like_temperature(store: Datastore, temperature: float, metric: Metric) -> float:
    """Converts a temperature that was chosen for a metric to the datastore's metric."""
    if metric == store.manifest.metric:
        return temperature
    keys = training_sample(store, _QUERIES, seed=0) if store.has_keys else store.checks[CANARY_KEYS]
    mean_square = max(float(np.square(keys).sum(axis=-1).mean()), 1e-12)
    # The number is rounded, so that going to another metric and back changes nothing.
    like = equivalent_temperature(temperature, metric, store.manifest.metric, mean_square)
    return float(f"{like:.8g}")


def write_suffixes(job: Job, store: Datastore, progress: Progress) -> None:
    """Writes the suffix index of a datastore's text, if it is not there already."""
    if job.file("suffixes") is None:
        order = suffix_order(np.asarray(store.tokens), store.documents.first, progress)
        job.write("suffixes", order)


def check_index(index: IndexConfig, dim: int, metric: Metric, entries: int | None = None) -> None:
    """Refuses an index that cannot be made; `entries` is None while it is not known."""
    if index.factory != "auto":
        keys = None if entries is None else min(entries, index.train_size or entries)
        Kind(index.factory, dim, metric).check(keys)


def write_index(job: Job, index: Index, record: IndexRecord) -> None:
    # An earlier run may have left the file of another index.
    job.drop("index")
    if isinstance(index, FaissIndex):
        job.write("index", plain_arrays.to_arrays(index.raw), {"factory": record.factory})


def make_index(
    store: Datastore, config: IndexConfig, *, progress: Progress = no_progress
) -> tuple[Index, IndexRecord]:
    """Builds an index, with the least nprobe of enough recall."""
    factory = config.factory
    if factory == "auto":
        # Removed entries are not searched.
        factory = choose_factory(len(store) - len(store.removed_entries), store.manifest.dim)
    kind = Kind(factory, store.manifest.dim, store.manifest.metric)
    # FAISS keeps a number of threads for each thread, and another thread builds the index.
    threads = int(faiss_module().omp_get_max_threads()) if kind.approximate else None
    built = while_running(
        progress,
        f"index {factory}",
        lambda: index_from_keys(store, factory, config, threads=threads),
    )
    record = IndexRecord(
        factory=factory,
        requested=config.factory,
        seed=config.seed,
        train_size=config.train_size,
        nprobe=config.nprobe if kind.approximate else None,
    )
    return built, measured(store, built, record, progress)


def index_anew(store: Datastore, progress: Progress) -> tuple[Index, IndexRecord]:
    """Builds the index that a datastore's record asks for, which may be hostile."""
    record = store.manifest.index
    if record.requested == "auto":
        return make_index(store, IndexConfig(seed=record.seed), progress=progress)
    stored = record.model_dump(include={"nprobe", "train_size", "seed"})
    config = IndexConfig(record.factory, **stored)
    index, made = make_index(store, config, progress=progress)
    return index, made.model_copy(update={"requested": record.requested})
