"""`LearnedGate`: λ by a small network on what the neighbors and the model's distribution look like.

He et al. (2021), "Efficient Nearest Neighbor Language Models", section 4.1, let a network on the
model's confidence and entropy decide; Zheng et al. (2021), "Adaptive Nearest Neighbor Machine
Translation", section 3, one on distances and on how many values the neighbors have. Here it is
both, and whether the model would have said what the nearest neighbor says. No feature depends on
the temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.config import Metric, check_metric
from knn_logits.errors import ConfigError
from knn_logits.gating.gate import MOST_BY_NETWORK
from knn_logits.gating.network import Network
from knn_logits.gating.skipping import entropy_of
from knn_logits.neighbors import Neighbors, nearest_distance

FEATURES = (
    "distance of the nearest",
    "mean distance of the nearest few",
    "share of the nearest few that vote as the nearest does",
    "log p_LM of the nearest one's value",
    "log p_LM of the likeliest token",
    "entropy of p_LM",
)
FEW = 16
_LEAST_LOG_P = -20.0


def gate_features(neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
    """What a `LearnedGate` reads.

    Args:
        neighbors: The neighbors of `rows` queries.
        metric: Metric of their distances.
        log_p_lm: The model's log-probabilities, [rows, vocabulary].

    Returns:
        float32 [rows, features], finite, in the order of `FEATURES`; natural logarithms and nats.
        The features of neighbors are 0 for a row that has none.
    """
    rows = neighbors.rows
    found = torch.zeros(rows, 4, dtype=torch.float32, device=log_p_lm.device)
    if neighbors.k:
        few = min(FEW, neighbors.k)
        near, columns = neighbors.distances.topk(few, dim=-1, largest=metric != "l2")
        values = neighbors.values.gather(-1, columns)
        there = neighbors.ids.gather(-1, columns) >= 0
        number = there.sum(-1).clamp(min=1)
        first = values[:, :1]
        log_p = log_p_lm.gather(-1, first)[:, 0].clamp(min=_LEAST_LOG_P)
        found = torch.stack(
            [
                near[:, 0],
                near.masked_fill(~there, 0.0).sum(-1) / number,
                ((values == first) & there).sum(-1) / number,
                log_p,
            ],
            dim=-1,
        )
        found = found.masked_fill(~there[:, :1], 0.0)
    model = torch.stack([log_p_lm.amax(-1), entropy_of(log_p_lm)], dim=-1)
    limit = torch.finfo(torch.float32).max
    return torch.cat([found.float(), model.float()], dim=-1).clamp(-limit, limit)


class LearnedGate:
    """λ = sigmoid(out · tanh(hidden · (features - mean) / scale + hidden_bias) + out_bias).

    At most 0.999, so that the model keeps a say.
    `fit_learned_gate` makes one; a few hundred numbers, read in no time beside a search. A row
    without neighbors has λ 0.

    Args:
        metric: What the distances are that it was fitted for.
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
        """λ of each row; see `Gate.lmbda`.

        Raises:
            ConfigError: when the gate was fitted for another metric.
        """
        if metric != self.metric:
            raise ConfigError(f"this gate reads {self.metric} distances, not {metric}: fit another")
        lmbda = self.at(gate_features(neighbors, metric, log_p_lm))
        return lmbda.masked_fill(nearest_distance(neighbors, metric).isinf(), 0.0)

    def at(self, features: Tensor) -> Tensor:
        """λ for some features.

        Args:
            features: float32 [n, features].

        Returns:
            float32 [n], in [0, 1].
        """
        return torch.sigmoid(self._network(features)).clamp(max=MOST_BY_NETWORK)

    def to_arrays(self) -> dict[str, Array]:
        """The gate as arrays, float32."""
        return self._network.to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> LearnedGate:
        """The gate from its arrays.

        Raises:
            KeyError: when one is missing.
            ConfigError: when their values are no gate's.
        """
        return cls(metric, arrays)
