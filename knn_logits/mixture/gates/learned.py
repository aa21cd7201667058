"""`LearnedGate`: λ by a small network, as in He et al. (2021) and Zheng et al. (2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric, as_distance, check_metric
from knn_logits.mixture.gates.fitted import FittedGate, GateTokens, usable_tokens
from knn_logits.mixture.gates.gate import MOST_BY_NETWORK
from knn_logits.mixture.gates.network import Network, trained
from knn_logits.mixture.gates.skipping import entropy_of
from knn_logits.progress import Progress, no_progress
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


class LearnedGate(FittedGate):
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
        """Returns λ of each row, as `Gate.lmbda` says."""
        self.check(metric)
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

    @classmethod
    def features(
        cls, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor, ks: Sequence[int]
    ) -> Tensor:
        """See `FittedGate.features`."""
        return gate_features(neighbors, metric, log_p_lm)

    @classmethod
    def fit(
        cls, tokens: GateTokens, metric: Metric, seed: int, progress: Progress = no_progress
    ) -> LearnedGate:
        """See `FittedGate.fit`."""
        return fit_learned_gate(tokens.with_distance, tokens.lm, tokens.knn, metric, seed=seed)

    def to_arrays(self) -> dict[str, Array]:
        """See `FittedGate.to_arrays`."""
        return self._network.to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> LearnedGate:
        """See `FittedGate.from_arrays`."""
        return cls(metric, arrays)


def fit_learned_gate(
    features: Array,
    log_p_lm: Array,
    log_p_knn: Array,
    metric: Metric,
    *,
    units: int = 32,
    steps: int = 1500,
    decay: float = 1e-3,
    seed: int = 0,
) -> LearnedGate:
    """Trains a `LearnedGate` that makes a text likely.

    It minimises the mean of -log(λ p_kNN + (1 - λ) p_LM) with AdamW on batches of 4,096 tokens. He
    et al. (2021), section 4.1, do the same with a penalty on λ that saves searches. The training
    takes seconds on one core. The same seed and number of threads give the same gate.

    Args:
        features: [n, features], the result of `gate_features`, one row for each token.
        log_p_lm: [n], log p_LM of the text's tokens.
        log_p_knn: [n], log p_kNN of the text's tokens, -inf where no neighbor voted for the token.
        metric: The metric of the distances.
        units: Number of hidden units.
        steps: Number of training steps.
        decay: Weight decay.
        seed: Seed of the first weights and of the batches.

    Returns:
        The gate.

    Raises:
        ConfigError: when the arrays do not fit together or no token is left.
    """
    if np.ndim(features) != 2 or np.shape(features)[1] != len(FEATURES):
        raise ConfigError(f"features must have the shape [tokens, {len(FEATURES)}]")
    columns, lm, knn = usable_tokens(list(np.asarray(features).T), log_p_lm, log_p_knn)
    # A float cannot tell a difference of 60 from a larger one, but 60 still has a gradient.
    by_lm = torch.from_numpy(np.maximum(lm, knn - 60.0)).float()
    by_knn = torch.from_numpy(np.maximum(knn, lm - 60.0)).float()

    def loss(logit: Tensor, batch: Tensor) -> Tensor:
        mixed = torch.logaddexp(
            by_lm[batch] + functional.logsigmoid(-logit),
            by_knn[batch] + functional.logsigmoid(logit),
        )
        return -mixed.mean()

    read = np.stack(columns, -1)
    arrays = trained(read, loss, units=units, steps=steps, decay=decay, seed=seed)
    return LearnedGate(metric, arrays)
