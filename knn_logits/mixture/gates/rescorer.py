"""`RescorerGate` gives each neighbor a weight of its own, by a small network, and each token a λ.

Bhardwaj et al. (2022), "Adaptation Approaches for Nearest Neighbor Language Models" (arXiv
2211.07828), learn the weights of the neighbors that a search has found. In Drozdov et al. (2022),
"You can't pick your neighbors, or can you?", λ depends on how good they are. Here

    w'_i = softmax over the neighbors of (sharpness · log w_i + r_i)
    p(y) = λ p_kNN(y | w') + (1 - λ) p_LM(y)

where one network computes r_i from what is known of a neighbor and of its row, and another computes
λ from what a `MetaKGate` reads of the row. So everything that works with λ and weights works here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.metrics import COMPARISONS, Metric, check_metric
from knn_logits.mixture.gates.gate import MOST_BY_NETWORK
from knn_logits.mixture.gates.learned import FEATURES, LEAST_LOG_P
from knn_logits.mixture.gates.meta_k import meta_k_features, nearest_first
from knn_logits.mixture.gates.network import Network, checked_arrays, length
from knn_logits.search.neighbors import Neighbors, powers_up_to

NEIGHBOR_FEATURES = (
    "by how many nats it weighs less than the heaviest",
    "log distance, or the similarity of inner products",
    "log rank",
    "log p_LM of its value",
    "log of the weight of all neighbors with its value",
    "log of the number of neighbors with its value",
)
# The arrays that `scores` takes, in its order.
SCORING = ("near_hidden", "near_row", "near_bias", "near_out")
LARGEST_K = 1 << 12
_LEAST_DISTANCE = 1e-3
_LEAST_WEIGHT = 1e-6
# A feature counts as at most so many standard deviations from its mean.
_FARTHEST = 6.0


@dataclass(frozen=True)
class Near:
    """The nearest neighbors of some rows, the nearest first, as a `RescorerGate` reads them.

    Attributes:
        there: bool [rows, k], False for padding, which comes last.
        log_weights: float32 [rows, k], log w_i. The weights of a row sum to 1, or are all 0.
        nearness: float32 [rows, k], larger is nearer.
        log_p: float32 [rows, k], log p_LM of each neighbor's value, -20 at least.
        groups: int64 [rows, k], numbers from 0 to k - 1, which are equal where the values are.
    """

    there: Tensor
    log_weights: Tensor
    nearness: Tensor
    log_p: Tensor
    groups: Tensor

    @classmethod
    def of(cls, neighbors: Neighbors, log_weights: Tensor, log_p_lm: Tensor, order: Tensor) -> Near:
        """Takes the neighbors in some order.

        Args:
            log_weights: log w_i, [rows, columns].
            log_p_lm: The model's log-probabilities, [rows, vocabulary].
            order: int64 [rows, k], numbers of columns, the nearest first.
        """
        weights = log_weights.gather(-1, order)
        total = weights.logsumexp(-1, keepdim=True)
        values = neighbors.values.gather(-1, order)
        log_p = log_p_lm.gather(-1, values).float()
        return cls(
            neighbors.ids.gather(-1, order) >= 0,
            # A row without neighbors has the total -inf, and -inf - -inf would be NaN.
            weights - total.masked_fill(total.isinf(), 0.0),
            neighbors.nearness.gather(-1, order),
            log_p.clamp(min=LEAST_LOG_P),
            grouped(values),
        )

    def features(self, metric: Metric) -> Tensor:
        """Computes what is known of each neighbor.

        Returns:
            float32 [rows, k, 6], finite, in the order of `NEIGHBOR_FEATURES`. The numbers of
            padding say nothing.
        """
        weights = self.log_weights.exp()
        below = self.log_weights.amax(-1, keepdim=True) - self.log_weights
        ranks = torch.arange(1, weights.shape[-1] + 1, device=weights.device, dtype=weights.dtype)
        features = torch.stack(
            [
                below,
                _how_far(self.nearness, metric),
                ranks.log().expand_as(weights),
                self.log_p,
                self._of_value(weights).clamp(min=_LEAST_WEIGHT).log(),
                self._of_value(self.there.to(weights.dtype)).clamp(min=1.0).log(),
            ],
            dim=-1,
        )
        limit = torch.finfo(torch.float32).max
        return features.float().nan_to_num(nan=0.0, posinf=limit, neginf=-limit)

    def _of_value(self, numbers: Tensor) -> Tensor:
        """Sums the numbers of all neighbors with the same value, for each neighbor, [rows, k]."""
        sums = torch.zeros_like(numbers).scatter_add_(-1, self.groups, numbers)
        return sums.gather(-1, self.groups)


def grouped(values: Tensor) -> Tensor:
    """Numbers the different values of each row from 0, int64 [rows, k]."""
    by_value, places = values.sort(dim=-1)
    steps = torch.zeros_like(by_value)
    steps[:, 1:] = (by_value[:, 1:] != by_value[:, :-1]).long()
    return torch.empty_like(steps).scatter_(-1, places, steps.cumsum(-1))


def _how_far(nearness: Tensor, metric: Metric) -> Tensor:
    squared = COMPARISONS[metric].squared_distance(nearness)
    return nearness if squared is None else squared.clamp(min=_LEAST_DISTANCE).log()


def standardised(features: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Returns features in standard deviations from their mean, at most 6 of them."""
    return bounded((features - mean) / scale)


def bounded(features: Tensor) -> Tensor:
    """Returns standardised features, at most 6 standard deviations from the mean."""
    return features.clamp(-_FARTHEST, _FARTHEST)


class RescorerGate:
    """Networks that choose the weight of each neighbor, and λ.

    `tune(gate="rescorer")` fits a gate. λ is at most 0.999, so that the model's share is never 0. A
    row without neighbors has λ 0.

    Args:
        metric: The metric of the distances that the gate was fitted for.
        k: The number of nearest neighbors that the gate reads, at least 1. Others have no vote.
        arrays: The arrays of a `Network` with 6 + 2 ks inputs, for k_j = 1, 2, 4, ..., k, which
            computes λ. `near_mean` and `near_scale` [6], the latter above 0; `near_hidden`
            [units, 6], `near_row` [units, 6 + 2 ks], `near_bias` [units] and `near_out` [units],
            which compute r_i = out · tanh(hidden · neighbor + row · row's features + bias);
            `sharpness` [1], above 0.

    Raises:
        ConfigError: when the arrays do not fit together or `k` is not such a number.
    """

    kind = "rescorer"

    def __init__(self, metric: Metric, k: int, arrays: Mapping[str, Any]) -> None:
        self.metric: Metric = check_metric(metric)
        if isinstance(k, bool) or not 1 <= k <= LARGEST_K or k != int(k):
            raise ConfigError(
                f"the k of a RescorerGate must be a whole number from 1 to {LARGEST_K}"
            )
        self.k = int(k)
        self.ks = powers_up_to(self.k)
        inputs, outputs = len(FEATURES) + 2 * len(self.ks), len(NEIGHBOR_FEATURES)
        self._network = Network("RescorerGate", inputs, arrays)
        units = length("RescorerGate", arrays, "near_bias")
        shapes = {
            "near_mean": (outputs,),
            "near_scale": (outputs,),
            "near_hidden": (units, outputs),
            "near_row": (units, inputs),
            "near_bias": (units,),
            "near_out": (units,),
            "sharpness": (1,),
        }
        self._near = checked_arrays("RescorerGate", arrays, shapes, {"near_scale", "sharpness"})

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """Returns λ of each row, as `Gate.lmbda` says. `weigh` divides it among the neighbors.

        Raises:
            ConfigError: when the gate was fitted for another metric.
        """
        return self.lmbda_at(self._features(neighbors, metric, log_p_lm)[0], neighbors.mask.any(-1))

    def weigh(
        self, neighbors: Neighbors, log_weights: Tensor, metric: Metric, log_p_lm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns λ of each row, and log w'_i of the neighbors, as `Gate` says.

        Raises:
            ConfigError: when the gate was fitted for another metric.
        """
        features, order = self._features(neighbors, metric, log_p_lm)
        lmbda = self.lmbda_at(features, neighbors.mask.any(-1))
        if not neighbors.k:
            return lmbda, log_weights
        nearest = Near.of(neighbors, log_weights, log_p_lm, order)
        nothing = torch.full_like(log_weights, -math.inf)
        return lmbda, nothing.scatter_(-1, order, self.weights_at(nearest, features))

    def _features(
        self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the features of each row, and the columns of its nearest, the nearest first."""
        if metric != self.metric:
            raise ConfigError(
                f"this gate was fitted for the metric {self.metric}, not {metric}: fit another gate"
            )
        order = nearest_first(neighbors)[:, : self.k]
        return meta_k_features(neighbors, metric, log_p_lm, self.ks, order=order), order

    def lmbda_at(self, features: Tensor, has_neighbor: Tensor) -> Tensor:
        """Returns λ for the features of some rows.

        Args:
            features: float32 [rows, 6 + 2 ks], the result of `meta_k_features`.
            has_neighbor: bool [rows], whether the row has a neighbor.

        Returns:
            float32 [rows].
        """
        lmbda = torch.sigmoid(self._network(features)).clamp(max=MOST_BY_NETWORK)
        return lmbda.masked_fill(~has_neighbor.to(lmbda.device), 0.0)

    def weights_at(self, nearest: Near, features: Tensor) -> Tensor:
        """Returns log w'_i of the nearest neighbors.

        Args:
            nearest: The nearest k neighbors of some rows.
            features: float32 [rows, 6 + 2 ks], the result of `meta_k_features`.

        Returns:
            float32 [rows, k]. A neighbor without weight gets none.
        """
        weights = {name: weight.to(features.device) for name, weight in self._near.items()}
        mean, scale = (scale_part.to(features.device) for scale_part in self._network.scaling)
        bonus = scores(
            standardised(
                nearest.features(self.metric), weights["near_mean"], weights["near_scale"]
            ),
            standardised(features, mean, scale),
            *(weights[name] for name in SCORING),
        )
        logits = weights["sharpness"] * nearest.log_weights + bonus
        # A row without weights has only -inf, and -inf - -inf would be NaN.
        heaviest = logits.amax(-1, keepdim=True)
        logits = logits - heaviest.masked_fill(heaviest.isinf(), 0.0)
        total = logits.logsumexp(-1, keepdim=True)
        return logits - total.masked_fill(total.isinf(), 0.0)

    def to_arrays(self) -> dict[str, Array]:
        """Returns the gate as arrays, float32."""
        arrays = {name: weight.cpu().numpy() for name, weight in self._near.items()}
        return {"k": np.array([self.k], np.float32), **self._network.to_arrays(), **arrays}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> RescorerGate:
        """Makes the gate from its arrays.

        Raises:
            KeyError: when an array is missing.
            ValueError: when k is not one number.
            ConfigError: when the arrays do not form a gate.
        """
        (k,) = arrays["k"].tolist()
        return cls(metric, k, arrays)


def scores(
    neighbors: Tensor, row: Tensor, hidden: Tensor, of_row: Tensor, bias: Tensor, out: Tensor
) -> Tensor:
    """Computes r_i of each neighbor.

    Args:
        neighbors: [rows, k, 6], the standardised features of the neighbors.
        row: [rows, features], the standardised features of the rows.
        hidden: [units, 6].
        of_row: [units, features].
        bias: [units].
        out: [units].

    Returns:
        [rows, k].
    """
    inside = neighbors @ hidden.T + (row @ of_row.T + bias)[:, None]
    return torch.tanh(inside) @ out
