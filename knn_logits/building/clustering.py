"""`cluster`: k-means over a datastore's keys, for RetoMaton's states."""

from __future__ import annotations

import os

import numpy as np

from knn_logits.arrays import Array
from knn_logits.engine.compatibility import needs_keys
from knn_logits.errors import ConfigError
from knn_logits.index.faiss_library import assign, train_centroids
from knn_logits.index.opening import training_sample
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.settings.config import IndexConfig, whole_number
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import begin

_KEYS_AT_ONCE = 65_536
# More iterations hardly change the centroids.
_SAMPLE_PER_CLUSTER = 64


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
        ConfigError: when there are more clusters than entries.
        DatastoreError: when the datastore has no keys.
        BusyError: when another process is writing the datastore.
    """
    clusters = whole_number("clusters", clusters, 1)
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    needs_keys(store, "`index --clusters`")
    if not 1 <= clusters <= len(store):
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
        labels: Array = np.empty(len(store), np.int32)
        done = 0
        count = counter(progress, "clusters", len(store))
        for batch in store.key_batches(_KEYS_AT_ONCE):
            nearest = assign(centroids, batch, metric=metric)
            labels[done : done + len(batch)] = nearest
            done += len(batch)
            count(len(batch))
        job.write("clusters", labels)
        job.commit(store.manifest)
    return Datastore(store.folder)
