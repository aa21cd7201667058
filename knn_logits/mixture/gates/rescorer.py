"""`RescorerGate`: λ and each neighbor's weight. Bhardwaj et al. (2022), Drozdov et al. (2022)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array, Floats
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric, check_metric
from knn_logits.mixture.gates.fitted import FittedGate, GateTokens
from knn_logits.mixture.gates.gate import MOST_BY_NETWORK
from knn_logits.mixture.gates.learned import FEATURES
from knn_logits.mixture.gates.meta_k import meta_k_features, nearest_first
from knn_logits.mixture.gates.network import Network, checked_arrays, length
from knn_logits.mixture.gates.rescorer_features import (
    NEIGHBOR_FEATURES,
    SCORING,
    NearestNeighbors,
    scores,
    standardised,
)
from knn_logits.mixture.gates.rescorer_fitting import (
    ROWS_AT_ONCE,
    Neighborhoods,
    NeighborhoodSample,
    trained_rescorer,
)
from knn_logits.mixture.weights import Weighing
from knn_logits.progress import Progress, no_progress
from knn_logits.search.neighbors import Neighbors, powers_up_to

LARGEST_K = 1 << 12


class RescorerGate(FittedGate):
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
    reads_all = True

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
        """Returns λ of each row, as `Gate.lmbda` says. `weigh` divides it among the neighbors."""
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
        nearest = NearestNeighbors.of(neighbors, log_weights, log_p_lm, order)
        nothing = torch.full_like(log_weights, -math.inf)
        return lmbda, nothing.scatter_(-1, order, self.weights_at(nearest, features))

    def _features(
        self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the features of each row, and the columns of its nearest, the nearest first."""
        self.check(metric)
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

    def weights_at(self, nearest: NearestNeighbors, features: Tensor) -> Tensor:
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

    @classmethod
    def sample(cls, ks: Sequence[int], metric: Metric, weighing: Weighing, seed: int) -> Any:
        """See `FittedGate.sample`."""
        return NeighborhoodSample(min(ks[-1], LARGEST_K), metric, weighing, seed)

    @classmethod
    def features(
        cls, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor, ks: Sequence[int]
    ) -> Tensor:
        """See `FittedGate.features`."""
        return meta_k_features(neighbors, metric, log_p_lm, powers_up_to(min(ks[-1], LARGEST_K)))

    @classmethod
    def fit(
        cls, tokens: GateTokens, metric: Metric, seed: int, progress: Progress = no_progress
    ) -> RescorerGate:
        """See `FittedGate.fit`."""
        return fit_rescorer(
            tokens.sample,
            tokens.features,
            tokens.lm,
            metric,
            temperature=tokens.temperature,
            lmbda=tokens.lmbda,
            seed=seed,
            progress=progress,
        )

    def log_p(self, tokens: GateTokens, progress: Progress = no_progress) -> Floats:
        """See `FittedGate.log_p`."""
        neighborhoods = tokens.sample
        log_p = np.array(tokens.lm, np.float64)
        for first in range(0, len(neighborhoods), ROWS_AT_ONCE):
            progress("gate, held out", first, len(neighborhoods))
            rows = slice(first, first + ROWS_AT_ONCE)
            chosen, read = neighborhoods[rows], torch.from_numpy(np.asarray(tokens.features)[rows])
            nearest = chosen.near(self.metric, tokens.temperature)
            lmbda = self.lmbda_at(read, nearest.present.any(-1)).double()
            votes = self.weights_at(nearest, read).double().masked_fill(~chosen.votes(), -math.inf)
            sides = (
                torch.log1p(-lmbda) + torch.from_numpy(log_p[rows]),
                lmbda.log() + votes.logsumexp(-1),
            )
            log_p[rows] = torch.logaddexp(*sides).numpy()
        progress("gate, held out", len(neighborhoods), len(neighborhoods))
        return log_p

    def to_arrays(self) -> dict[str, Array]:
        """See `FittedGate.to_arrays`."""
        arrays = {name: weight.cpu().numpy() for name, weight in self._near.items()}
        return {"k": np.array([self.k], np.float32), **self._network.to_arrays(), **arrays}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> RescorerGate:
        """See `FittedGate.from_arrays`."""
        (k,) = arrays["k"].tolist()
        return cls(metric, k, arrays)


def fit_rescorer(
    neighborhoods: Neighborhoods, features: Array, log_p_lm: Array, metric: Metric, **settings: Any
) -> RescorerGate:
    """Trains a `RescorerGate`, as `trained_rescorer` explains."""
    arrays = trained_rescorer(neighborhoods, features, log_p_lm, metric, **settings)
    return RescorerGate(metric, neighborhoods.groups.shape[1], arrays)
