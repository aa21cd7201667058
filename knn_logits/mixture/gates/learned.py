"""`LearnedGate` chooses λ by a small network that reads the neighbors and the model's distribution.

The network of He et al. (2021), "Efficient Nearest Neighbor Language Models", section 4.1, reads
the model's confidence and entropy. The network of Zheng et al. (2021), "Adaptive Nearest Neighbor
Machine Translation", section 3, reads distances and the number of different values. This one reads
both, and also the model's probability of the nearest neighbor's value. No feature depends on the
temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric, as_distance, check_metric
from knn_logits.mixture.gates.gate import MOST_BY_NETWORK
from knn_logits.mixture.gates.network import Network
from knn_logits.mixture.gates.skipping import entropy_of
from knn_logits.search.neighbors import Neighbors, nearest_nearness

FEATURES = (
    "distance of the nearest",
    "mean distance of the nearest few",
    "share of the nearest few that vote as the nearest does",
    "log p_LM of the nearest one's value",
    "log p_LM of the likeliest token",
    "entropy of p_LM",
)
FEW = 16
LEAST_LOG_P = -20.0


def gate_features(neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
    """Computes the features that a `LearnedGate` reads.

    Args:
        neighbors: The neighbors of `rows` queries.
        metric: Metric of their distances.
        log_p_lm: The model's log-probabilities, [rows, vocabulary].

    Returns:
        float32 [rows, features], finite, in the order of `FEATURES`, in natural logarithms and
        nats. For a row without neighbors, the features of neighbors are 0.
    """
    rows = neighbors.rows
    features = torch.zeros(rows, 4, dtype=torch.float32, device=log_p_lm.device)
    if neighbors.k:
        few = min(FEW, neighbors.k)
        nearness, columns = neighbors.nearness.topk(few, dim=-1)
        distances = as_distance(nearness, metric)
        values = neighbors.values.gather(-1, columns)
        present = neighbors.ids.gather(-1, columns) >= 0
        number = present.sum(-1).clamp(min=1)
        first = values[:, :1]
        log_p = log_p_lm.gather(-1, first)[:, 0].clamp(min=LEAST_LOG_P)
        features = torch.stack(
            [
                distances[:, 0],
                distances.masked_fill(~present, 0.0).sum(-1) / number,
                ((values == first) & present).sum(-1) / number,
                log_p,
            ],
            dim=-1,
        )
        features = features.masked_fill(~present[:, :1], 0.0)
    model = torch.stack([log_p_lm.amax(-1), entropy_of(log_p_lm)], dim=-1)
    limit = torch.finfo(torch.float32).max
    return torch.cat([features.float(), model.float()], dim=-1).clamp(-limit, limit)


class LearnedGate:
    """λ = sigmoid(out · tanh(hidden · (features - mean) / scale + hidden_bias) + out_bias).

    λ is at most 0.999, so that the model's share is never 0. A row without neighbors has λ 0.
    `fit_learned_gate` makes a gate. It has a few hundred numbers, and is fast compared with a
    search.

    Args:
        metric: The metric of the distances that the gate was fitted for.
        arrays: `mean` and `scale` [features], `hidden` [units, features], `hidden_bias` [units],
            `out` [units], `out_bias` [1], all finite, `scale` above 0.

    Raises:
        ConfigError: when the arrays do not fit together.
    """

    kind = "learned"

    def __init__(self, metric: Metric, arrays: Mapping[str, Any]) -> None:
        self.metric: Metric = check_metric(metric)
        self._network = Network("LearnedGate", len(FEATURES), arrays)

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """Returns λ of each row, as `Gate.lmbda` says.

        Raises:
            ConfigError: when the gate was fitted for another metric.
        """
        if metric != self.metric:
            raise ConfigError(
                f"this gate was fitted for the metric {self.metric}, not {metric}: fit another gate"
            )
        lmbda = self.at(gate_features(neighbors, metric, log_p_lm))
        return lmbda.masked_fill(nearest_nearness(neighbors).isinf(), 0.0)

    def at(self, features: Tensor) -> Tensor:
        """Returns λ for some features.

        Args:
            features: float32 [n, features].

        Returns:
            float32 [n], in [0, 1].
        """
        return torch.sigmoid(self._network(features)).clamp(max=MOST_BY_NETWORK)

    def to_arrays(self) -> dict[str, Array]:
        """Returns the gate as arrays, float32."""
        return self._network.to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> LearnedGate:
        """Makes the gate from its arrays.

        Raises:
            KeyError: when an array is missing.
            ConfigError: when the arrays do not form a gate.
        """
        return cls(metric, arrays)
