"""How the package uses FAISS, which only this module imports: errors, empty indexes, k-means."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, MissingDependencyError
from knn_logits.index.base import prepared
from knn_logits.metrics import COMPARISONS, Metric

# Maximum size of the table of an index with product quantization.
MAX_TABLE_BYTES = 256 << 20


def faiss_module() -> Any:
    try:
        import faiss  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingDependencyError(
            "FAISS is not installed: pip install faiss-cpu; the index type 'exact' does not need it"
        ) from error
    return faiss


def faiss_reason(error: Exception) -> str:
    """An error of FAISS as one line, without the C++ function that raised it."""
    text = " ".join(str(error).split())
    return re.sub(r"^Error in .* at \S+:\d+: (?:Error: )?", "", text)


def make_empty(factory: str, dim: int, metric: Metric) -> Any:
    faiss = faiss_module()
    try:
        index = faiss.index_factory(dim, factory, COMPARISONS[metric].faiss)
    except RuntimeError as error:
        reason = faiss_reason(error)
        raise ConfigError(
            f"FAISS cannot build the index {factory!r} for {dim}-dimensional keys ({reason}); "
            "try 'auto', 'exact' or 'IVF1024,SQ8'"
        ) from error
    ivf = inverted_file(index)
    if ivf is not None:
        ivf.cp.seed = 1234
        # This silences FAISS's warning on stderr that there are fewer keys than it recommends.
        ivf.cp.min_points_per_centroid = 1
        if hasattr(ivf, "pq"):
            ivf.pq.cp.min_points_per_centroid = 1
        if hasattr(ivf, "use_precomputed_table"):
            ivf.use_precomputed_table = -1  # `precompute` makes the table, if it is small
        if hasattr(ivf, "do_polysemous_training"):
            # Polysemous training numbers the centroids so that codes can be compared by their bits.
            # No search here needs that, and it takes nearly all the time of the training.
            ivf.do_polysemous_training = False
    return index


def inverted_file(index: Any) -> Any:
    """The inverted file of an index; None if it has none."""
    faiss = faiss_module()
    inner = faiss.downcast_index(index)
    return inner if isinstance(inner, faiss.IndexIVF) else None


def precompute(ivf: Any) -> None:
    """Precomputes the products of lists and codes: a search is up to 2.5 times as fast."""
    if not isinstance(ivf, faiss_module().IndexIVFPQ) or not ivf.ntotal:
        return
    if 4 * ivf.nlist * ivf.pq.M * ivf.pq.ksub <= MAX_TABLE_BYTES:
        ivf.use_precomputed_table = 0
        ivf.precompute_table()


@contextlib.contextmanager
def openmp_threads(number: int | None) -> Iterator[None]:
    """Sets FAISS's number of threads for a while; None leaves it as it is."""
    if number is None:
        yield
        return
    faiss = faiss_module()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(number)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def train_centroids(keys: Array, clusters: int, *, metric: Metric, seed: int) -> Array:
    """Centroids of keys by k-means, float32 [clusters, dim]."""
    faiss = faiss_module()
    keys = prepared(keys, metric)
    kmeans = faiss.Kmeans(
        keys.shape[1], clusters, niter=20, seed=seed + 1, min_points_per_centroid=1
    )
    kmeans.train(keys)
    centroids: Array = kmeans.centroids
    return centroids


def assign(centroids: Array, keys: Array, *, metric: Metric) -> Array:
    """Finds the nearest centroid of each key, int64 [rows]."""
    _, nearest = faiss_module().knn(prepared(keys, metric), np.ascontiguousarray(centroids), 1)
    labels: Array = nearest[:, 0]
    return labels
