"""Finds centroids of keys by FAISS's k-means, and the nearest centroid of each key."""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Array
from knn_logits.index.base import prepared
from knn_logits.index.faiss_library import faiss_module, openmp_threads, search
from knn_logits.metrics import Metric


def train_centroids(
    keys: Array, clusters: int, *, metric: Metric, seed: int, threads: int | None = None
) -> Array:
    """Finds centroids by k-means.

    Args:
        keys: float32 [rows, dim], the keys to learn from.

    Returns:
        float32 [clusters, dim].
    """
    faiss = faiss_module()
    keys = prepared(keys, metric)
    with openmp_threads(threads):
        kmeans = faiss.Kmeans(
            keys.shape[1], clusters, niter=20, seed=seed + 1, min_points_per_centroid=1
        )
        kmeans.train(keys)
    centroids: Array = kmeans.centroids
    return centroids


def assign(centroids: Array, keys: Array, *, metric: Metric, threads: int | None = None) -> Array:
    """Finds the nearest centroid of each key, int64 [rows]."""
    faiss = faiss_module()
    index = faiss.IndexFlatL2(centroids.shape[1])
    index.add(np.ascontiguousarray(centroids))
    with openmp_threads(threads):
        _, nearest = search(index, prepared(keys, metric), 1)
    labels: Array = nearest[:, 0]
    return labels
