"""Finds the inverted lists to visit by a graph over thousands of centroids, which is not stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.index.faiss_library import faiss_module, openmp_threads, search

# With fewer lists a comparison with each centroid is as fast.
FEWEST_LISTS = 2048
# A build takes no more. A small file can name a million, whose graph takes half a minute.
MOST_LISTS = 1 << 16
# Neighbors of a centroid in the graph, and centroids that are looked at to find them.
_LINKS, _LOOKED_AT = 32, 80
# The fewest centroids that a search looks at. It misses less than one list in a thousand.
_SEARCHED = 32


class ListGraph:
    """HNSW over the centroids of an inverted file, squared L2. Malkov and Yashunin (2018)."""

    def __init__(self, centroids: Array) -> None:
        self._graph = faiss_module().IndexHNSWFlat(centroids.shape[1], _LINKS)
        self._graph.hnsw.efConstruction = _LOOKED_AT
        # More threads would make another graph each time.
        with openmp_threads(1):
            self._graph.add(centroids)

    @classmethod
    def of(cls, ivf: Any) -> ListGraph | None:
        """The graph of a trained inverted file; None for another metric or number of lists."""
        faiss = faiss_module()
        if ivf is None or ivf.metric_type != faiss.METRIC_L2:
            return None
        if not FEWEST_LISTS <= int(ivf.nlist) <= MOST_LISTS:
            return None
        centroids = faiss.downcast_index(ivf.quantizer)
        if not isinstance(centroids, faiss.IndexFlat) or centroids.ntotal != ivf.nlist:
            return None
        return cls(centroids.reconstruct_n(0, int(ivf.nlist)))

    def search(self, queries: Array, nprobe: int) -> tuple[Array, Array]:
        """Squared distances and lists [rows, nprobe], the nearest first; -1 if not finite."""
        looked_at = faiss_module().SearchParametersHNSW(efSearch=max(_SEARCHED, 2 * nprobe))
        distances, lists = search(self._graph, queries, nprobe, looked_at)
        lists[~np.isfinite(distances)] = -1
        return distances, lists
