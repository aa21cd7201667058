"""`DistanceGate` chooses λ by the distance of the nearest neighbor.

A near neighbor has seen this context, and a far one has seen another. Drozdov et al. (2022), "You
can't pick your neighbors, or can you?", put the similarity into buckets and fit a coefficient for
each. Here the coefficients hold at the middles of the bins, and λ is linear between them. So two
distances on either side of a bin's edge get almost the same λ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric, as_distance, check_metric
from knn_logits.search.neighbors import Neighbors, nearest_nearness
from knn_logits.store.layout import LARGEST_IN_GATE


class DistanceGate:
    """λ as a curve over the nearest neighbor's distance.

        gate = DistanceGate("l2", [2.0, 8.0], [0.9, 0.1])      # λ 0.5 at the distance 5
        KNNLogitsProcessor(model, store, lmbda=gate)

    Between two middles λ is interpolated. Beyond the outermost middles it stays constant, since
    nothing was measured there. A row without neighbors has λ 0.

    Args:
        metric: The metric: squared distances ("l2") or similarities ("ip", "cosine").
        middles: The distances at the middles of the bins, [bins], finite and ascending.
        lmbdas: λ at each middle, [bins], in [0, 1].

    Raises:
        ConfigError: when the lengths differ or a value is out of its range.
    """

    kind = "distance"

    def __init__(self, metric: Metric, middles: Any, lmbdas: Any) -> None:
        self.metric: Metric = check_metric(metric)
        self.middles = _numbers("middles", middles)
        self.lmbdas = _numbers("lmbdas", lmbdas)
        if self.middles.shape != self.lmbdas.shape:
            raise ConfigError("a DistanceGate needs the same number of middles and lmbdas")
        if bool((self.middles[1:] <= self.middles[:-1]).any()):
            raise ConfigError("the middles of a DistanceGate must be ascending")
        if not bool(((self.lmbdas >= 0.0) & (self.lmbdas <= 1.0)).all()):
            raise ConfigError("the lmbdas of a DistanceGate must lie between 0 and 1")

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:  # noqa: ARG002
        """Returns λ of each row, as `Gate.lmbda` says.

        Raises:
            ConfigError: when the gate was fitted for another metric.
        """
        if metric != self.metric:
            raise ConfigError(
                f"this gate was fitted for the metric {self.metric}, not {metric}: fit another gate"
            )
        nearness = nearest_nearness(neighbors)
        nearest = as_distance(nearness, metric)
        return self.at(nearest).masked_fill(nearest.isinf(), 0.0)

    def at(self, nearest: Tensor) -> Tensor:
        """Returns λ at some distances.

        Args:
            nearest: [n], distances of the nearest neighbors.

        Returns:
            float32 [n], in [0, 1].
        """
        middles, lmbdas = self.middles.to(nearest.device), self.lmbdas.to(nearest.device)
        if len(middles) == 1:
            return lmbdas.expand(len(nearest))
        inside = nearest.float().clamp(middles[0], middles[-1])
        above = torch.searchsorted(middles, inside).clamp_(1, len(middles) - 1)
        left, right = middles[above - 1], middles[above]
        part = (inside - left) / (right - left)
        return torch.lerp(lmbdas[above - 1], lmbdas[above], part)

    def to_arrays(self) -> dict[str, Array]:
        """Returns the gate as arrays, float32 [bins] each."""
        return {"middles": self.middles.cpu().numpy(), "lmbdas": self.lmbdas.cpu().numpy()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> DistanceGate:
        """Makes the gate from its arrays.

        Raises:
            KeyError: when an array is missing.
            ConfigError: when the arrays do not form a gate.
        """
        return cls(metric, arrays["middles"], arrays["lmbdas"])


def _numbers(name: str, values: Any) -> Tensor:
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu().numpy()
        array = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the {name} of a DistanceGate must be numbers: {error}") from error
    # A comparison with NaN is false, so this refuses NaN as well.
    if array.ndim != 1 or not array.size or not (np.abs(array) <= LARGEST_IN_GATE).all():
        raise ConfigError(
            f"the {name} of a DistanceGate must be a list of finite numbers, "
            f"{LARGEST_IN_GATE:g} at most"
        )
    return torch.from_numpy(array)
