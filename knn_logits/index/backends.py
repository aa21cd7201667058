"""The registry of backends, in the order in which they are asked for a factory string."""

from __future__ import annotations

from knn_logits.errors import ConfigError
from knn_logits.index.backend import Backend
from knn_logits.index.exact import ExactBackend
from knn_logits.index.faiss_factory import FaissBackend
from knn_logits.metrics import Metric

BACKENDS: tuple[type[Backend], ...] = (
    ExactBackend,
    FaissBackend,
)


def backend_kind(factory: str) -> type[Backend]:
    """The kind of index that a factory string names; `ConfigError` for an unknown one."""
    for kind in BACKENDS:
        if kind.takes(factory):
            return kind
    raise ConfigError(
        f"there is no index type {factory[:100]!r}: use auto, exact, or a type such as "
        "IVF1024,Flat, IVF1024,SQ8, IVF1024,PQ64 or HNSW32"
    )


def backend(factory: str, dim: int, metric: Metric) -> Backend:
    """The kind of index that a factory string names, for keys of `dim` numbers."""
    return backend_kind(factory)(factory, dim, metric)
