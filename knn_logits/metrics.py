"""Metrics. Inside the package larger is nearer; files and people get distances (`as_distance`).

No torch is imported here, since commands read the names at their start.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, get_args

from knn_logits.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Metric = Literal["l2", "ip", "cosine"]
METRICS: tuple[Metric, ...] = get_args(Metric)
DEFAULT_METRIC: Metric = "l2"
# The metric of a learned memory's rows.
LEARNED_METRIC: Metric = "ip"


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Computes in the tensors' own type, even within the caller's `torch.autocast`."""
    import torch

    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


class InnerProduct:
    """How keys are compared; the base class of every metric."""

    faiss: int = 0  # METRIC_INNER_PRODUCT of prepared vectors
    sign: int = 1  # -1 if the nearness is a negated distance
    unit_length: bool = False  # vectors are scaled to length 1
    centered: bool = False  # vectors may be moved together, which loses less to rounding
    perfect: float | None = None  # nearness of a vector to itself; None if others may be nearer

    def prepared(self, vectors: Tensor) -> Tensor:
        """Returns vectors, [rows, dim], as they are compared. A zero vector stays zero."""
        if not self.unit_length:
            return vectors
        lengths: Tensor = vectors.norm(dim=-1, keepdim=True)
        return vectors / lengths.clamp_min(1e-12)

    def norms(self, keys: Tensor) -> Tensor | None:
        """The term of `scores` for each prepared key besides the key, [size]; None for nothing."""
        return None

    def scores(self, queries: Tensor, keys: Tensor, norms: Tensor | None) -> Tensor:
        """Compares prepared queries with all keys, [rows, size], in the order of their nearness."""
        with full_precision(keys.device):
            return queries @ keys.T

    def of_scores(self, scores: Tensor, queries: Tensor) -> Tensor:
        """Makes nearness of the scores, [rows, k], of each query's nearest keys."""
        return scores

    def pairwise(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Compares each query, [rows, dim], with its own keys, [rows, k, dim]."""
        with full_precision(keys.device):
            return self.prepared(keys).bmm(self.prepared(queries).unsqueeze(-1)).squeeze(-1)

    def of_query(self, query: Any, keys: Any) -> Any:
        """Compares arrays: a prepared query, [dim], with keys, [k, dim], which it may overwrite."""
        import numpy as np
        import torch

        # For few keys, NumPy takes half the time of PyTorch.
        return np.vecdot(self.prepared(torch.from_numpy(keys)).numpy(), query)

    def unit(self, mean_square: float) -> float:
        """How a temperature compares with that of squared distances, for keys of this square."""
        return 0.5


class SquaredDistance(InnerProduct):
    """|q|^2 + |k|^2 - 2qk, of centered vectors, which loses far less to rounding."""

    faiss = 1  # METRIC_L2
    sign = -1
    centered = True
    perfect = 0.0

    def norms(self, keys: Tensor) -> Tensor | None:
        return keys.square().sum(dim=-1)

    def scores(self, queries: Tensor, keys: Tensor, norms: Tensor | None) -> Tensor:
        # Adding -|q|^2 would not change the order.
        assert norms is not None
        with full_precision(keys.device):
            return norms.addmm(queries, keys.T, beta=-1.0, alpha=2.0)

    def of_scores(self, scores: Tensor, queries: Tensor) -> Tensor:
        return (scores - queries.square().sum(dim=-1, keepdim=True)).clamp_max_(0.0)

    def pairwise(self, queries: Tensor, keys: Tensor) -> Tensor:
        # Differences lose nothing to rounding.
        return (keys - queries.unsqueeze(1)).square().sum(dim=-1).neg()

    def of_query(self, query: Any, keys: Any) -> Any:
        import numpy as np

        keys -= query
        return -np.vecdot(keys, keys)

    def unit(self, mean_square: float) -> float:
        return 1.0


class Cosine(InnerProduct):
    """The inner product of vectors of length 1."""

    unit_length = True
    perfect = 1.0

    def unit(self, mean_square: float) -> float:
        return 0.5 / mean_square


COMPARISONS: dict[str, InnerProduct] = {
    "l2": SquaredDistance(),
    "ip": InnerProduct(),
    "cosine": Cosine(),
}
# The metric of a file of FAISS, which does not say whether its vectors have length 1.
METRIC_OF_FAISS: dict[int, Metric] = {
    COMPARISONS[metric].faiss: metric for metric in reversed(METRICS)
}


def check_metric(metric: str) -> Metric:
    """Returns `metric`; `ConfigError` unless it is one of `METRICS`."""
    if metric not in METRICS:
        raise ConfigError(f"metric must be one of {', '.join(METRICS)}, not {metric!r}")
    return metric


def as_distance(nearness: Any, metric: Metric) -> Any:
    """Nearness as files and people have it, and back: a distance, or a similarity as it is."""
    return -nearness if COMPARISONS[metric].sign < 0 else nearness


def equivalent_temperature(
    temperature: float, old: Metric, new: Metric, mean_square: float
) -> float:
    """The temperature that gives like weights under another metric."""
    # For keys and queries of equal length |q - k|^2 = 2 |k|^2 - 2 qk. So the inner product needs
    # half the temperature of the squared distance, and the cosine that half divided by |k|^2.
    return temperature * COMPARISONS[new].unit(mean_square) / COMPARISONS[old].unit(mean_square)
