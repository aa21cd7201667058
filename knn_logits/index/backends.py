"""The registry of backends, in the order in which they are asked for a factory string."""

from __future__ import annotations

from knn_logits.index.backend import Backend
from knn_logits.index.exact import ExactBackend
from knn_logits.index.faiss_factory import FaissBackend
from knn_logits.metrics import Metric

BACKENDS: tuple[type[Backend], ...] = (
    ExactBackend,
    FaissBackend,  # every other string
)


def backend_kind(factory: str) -> type[Backend]:
    return next(kind for kind in BACKENDS if kind.takes(factory))


def backend(factory: str, dim: int, metric: Metric) -> Backend:
    """The kind of index that a factory string names, for keys of `dim` numbers."""
    return backend_kind(factory)(factory, dim, metric)
