"""Gates that also skip searches. They decide by the model's distribution alone.

Before a search only the model's distribution is known. He et al. (2021), "Efficient Nearest
Neighbor Language Models", section 4.1 (adaptive retrieval), skip the searches that a network
expects little of. The wanted speed decides how many searches are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.gate import Gate, gate_name
from knn_logits.mixture.gates.network import Network
from knn_logits.search.neighbors import Neighbors
from knn_logits.settings.config import KNNConfig

SKIP_FEATURES = (
    "log p_LM of the likeliest token",
    "log p_LM of the second likeliest",
    "log p_LM of the likeliest 8 together",
    "log p_LM of the likeliest 64 together",
    "entropy of p_LM",
    "log of the sum of squares of p_LM",
)
_FEW, _LARGE = 8, 64
_LEAST = -30.0


def entropy_of(log_p: Tensor) -> Tensor:
    """Computes each row's entropy in nats, [rows]. A log-probability of -inf adds nothing."""
    p = log_p.exp()
    entropy = -(p * log_p).sum(-1)
    if bool(entropy.isnan().any()):  # 0 * -inf is NaN
        entropy = torch.special.entr(p).sum(-1)
    return entropy


def skip_features(log_p_lm: Tensor) -> Tensor:
    """Computes the features that a `LearnedSkip` reads.

    Args:
        log_p_lm: The model's log-probabilities, float32 [rows, vocabulary].

    Returns:
        float32 [rows, features], finite, in the order of `SKIP_FEATURES`, in natural logarithms.
    """
    top = log_p_lm.topk(min(_LARGE, log_p_lm.shape[-1]), dim=-1).values
    features = torch.stack(
        [
            top[:, 0],
            top[:, min(1, top.shape[1] - 1)],
            top[:, :_FEW].logsumexp(-1),
            top.logsumexp(-1),
            entropy_of(log_p_lm),
            # Only the likeliest tokens matter in a sum of squares.
            (2.0 * top).logsumexp(-1),
        ],
        dim=-1,
    )
    return features.float().clamp(min=_LEAST)


class _Skipping:
    """What the gates that skip have in common: λ where a search is made.

    Args:
        lmbda: λ where a search is made: a number in [0, 1], or a gate.
    """

    skip: ClassVar[str]

    def __init__(self, lmbda: float | Gate) -> None:
        if not isinstance(lmbda, Gate):
            lmbda = KNNConfig(lmbda=lmbda).lmbda  # checks its range
        elif getattr(lmbda, "searches", None) is not None:
            raise ConfigError(
                "a gate that skips cannot hold another gate that skips: give a number or another "
                "gate"
            )
        self.inner: float | Gate = lmbda

    @property
    def metric(self) -> Metric | None:
        """The metric of the distances that λ depends on; None if any metric will do."""
        return getattr(self.inner, "metric", None)

    @property
    def kind(self) -> str:
        """The kind of λ, and how the gate skips."""
        inner = gate_name(self.inner) if isinstance(self.inner, Gate) else f"{self.inner:g}"
        return f"{inner}, skips by {self.skip}"

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """Returns λ of each row, as `Gate.lmbda` says. A row without a search has λ 0."""
        if isinstance(self.inner, Gate):
            shares = self.inner.lmbda(neighbors, metric, log_p_lm)
        else:
            shares = torch.full(
                (neighbors.rows,), self.inner, dtype=torch.float32, device=log_p_lm.device
            )
        return self._where_neighbors(shares, neighbors)

    def weigh(
        self, neighbors: Neighbors, log_weights: Tensor, metric: Metric, log_p_lm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns λ of each row as `lmbda` does, and the weights that the inner gate chooses."""
        weigh = getattr(self.inner, "weigh", None)
        if weigh is None:
            return self.lmbda(neighbors, metric, log_p_lm), log_weights
        shares, log_weights = weigh(neighbors, log_weights, metric, log_p_lm)
        return self._where_neighbors(shares, neighbors), log_weights

    def _where_neighbors(self, lmbda: Tensor, neighbors: Neighbors) -> Tensor:
        if neighbors.every_row:
            return lmbda
        return lmbda.masked_fill(~neighbors.mask.any(-1).to(lmbda.device), 0.0)


class ConfidenceSkip(_Skipping):
    """Skips the search where the model is certain of its token.

        KNNLogitsProcessor(model, store, lmbda=ConfidenceSkip(0.5, limit=0.9))

    Args:
        lmbda: λ where a search is made: a number in [0, 1], or a gate.
        limit: A search is made where no token has a higher probability than this, in [0, 1].

    Raises:
        ConfigError: when a value is out of its range.
    """

    skip = "confidence"

    def __init__(self, lmbda: float | Gate, limit: float) -> None:
        super().__init__(lmbda)
        if isinstance(limit, bool) or not 0.0 <= float(limit) <= 1.0:
            raise ConfigError(f"limit must be a probability, not {limit!r}")
        self.limit = float(np.float32(limit))  # a file stores it in float32

    def searches(self, log_p_lm: Tensor) -> Tensor:
        """bool [rows], where to search; see `Gate`."""
        least = math.log(self.limit) if self.limit > 0.0 else -math.inf
        return log_p_lm.amax(-1) <= least

    def skip_arrays(self) -> dict[str, Array]:
        """How it skips, as arrays."""
        return {"limit": np.array([self.limit], np.float32)}

    @classmethod
    def from_arrays(cls, lmbda: float | Gate, arrays: Mapping[str, Array]) -> ConfidenceSkip:
        """The gate from what `skip_arrays` gave.

        Raises:
            KeyError: when an array is missing.
            ConfigError: when its values are no gate's.
        """
        return cls(lmbda, _number("limit", arrays))


class LearnedSkip(_Skipping):
    """Skips the search where a small network expects little of the neighbors.

    `fit_learned_skip` makes a gate. The network predicts from the model's distribution how many
    nats the neighbors would gain.

    Args:
        lmbda: λ where a search is made: a number in [0, 1], or a gate.
        threshold: A search is made where the expected gain is higher than this, in nats.
        arrays: The arrays of a `Network`.

    Raises:
        ConfigError: when a value is out of its range.
    """

    skip = "learned"

    def __init__(self, lmbda: float | Gate, threshold: float, arrays: Mapping[str, Any]) -> None:
        super().__init__(lmbda)
        if not math.isfinite(threshold):
            raise ConfigError(f"threshold must be a finite number, not {threshold!r}")
        self.threshold = float(np.float32(threshold))
        self._network = Network("LearnedSkip", len(SKIP_FEATURES), arrays)

    def expected(self, features: Tensor) -> Tensor:
        """Returns the gain that is expected from the neighbors.

        Args:
            features: float32 [n, features], the result of `skip_features`.

        Returns:
            float32 [n], in nats.
        """
        return self._network(features)

    def searches(self, log_p_lm: Tensor) -> Tensor:
        """bool [rows], where to search; see `Gate`."""
        return self.expected(skip_features(log_p_lm)) > self.threshold

    def skip_arrays(self) -> dict[str, Array]:
        """How it skips, as arrays."""
        return {"threshold": np.array([self.threshold], np.float32), **self._network.to_arrays()}

    @classmethod
    def from_arrays(cls, lmbda: float | Gate, arrays: Mapping[str, Array]) -> LearnedSkip:
        """The gate from what `skip_arrays` gave.

        Raises:
            KeyError: when an array is missing.
            ConfigError: when their values are no gate's.
        """
        return cls(lmbda, _number("threshold", arrays), arrays)


def _number(name: str, arrays: Mapping[str, Array]) -> float:
    array = np.asarray(arrays[name], dtype=np.float32)
    if array.shape != (1,):
        raise ConfigError(f"{name} of a gate that skips must be one number")
    return float(array[0])
