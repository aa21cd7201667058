"""Gates that also say where no neighbors need to be looked for, by the model's distribution alone.

What is known before the search is what the model says. He et al. (2021), "Efficient Nearest
Neighbor Language Models", section 4.1 (adaptive retrieval), leave the search out where a network
expects little of it, and so many of them as a speed asks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.config import KNNConfig, Metric
from knn_logits.errors import ConfigError
from knn_logits.gating.gate import Gate, gate_name
from knn_logits.gating.network import Network
from knn_logits.neighbors import Neighbors

SKIP_FEATURES = (
    "log p_LM of the likeliest token",
    "log p_LM of the second likeliest",
    "log p_LM of the likeliest 8 together",
    "log p_LM of the likeliest 64 together",
    "entropy of p_LM",
    "log of the sum of squares of p_LM",
)
_FEW, _MANY = 8, 64
_LEAST = -30.0


def entropy_of(log_p: Tensor) -> Tensor:
    """The entropy of each row in nats, [rows]; a token of log-probability -inf adds nothing."""
    p = log_p.exp()
    entropy = -(p * log_p).sum(-1)
    if bool(entropy.isnan().any()):  # 0 * -inf is NaN
        entropy = torch.special.entr(p).sum(-1)
    return entropy


def skip_features(log_p_lm: Tensor) -> Tensor:
    """What a `LearnedSkip` reads.

    Args:
        log_p_lm: The model's log-probabilities, float32 [rows, vocabulary].

    Returns:
        float32 [rows, features], finite, in the order of `SKIP_FEATURES`; natural logarithms.
    """
    top = log_p_lm.topk(min(_MANY, log_p_lm.shape[-1]), dim=-1).values
    found = torch.stack(
        [
            top[:, 0],
            top[:, min(1, top.shape[1] - 1)],
            top[:, :_FEW].logsumexp(-1),
            top.logsumexp(-1),
            entropy_of(log_p_lm),
            # Beyond the likeliest few, squares add nothing.
            (2.0 * top).logsumexp(-1),
        ],
        dim=-1,
    )
    return found.float().clamp(min=_LEAST)


class _Skipping:
    """What the gates that skip have in common: λ where they search.

    Args:
        lmbda: A number in [0, 1], or a gate.
    """

    skip: ClassVar[str]

    def __init__(self, lmbda: float | Gate) -> None:
        if not isinstance(lmbda, Gate):
            lmbda = KNNConfig(lmbda=lmbda).lmbda  # checks its range
        elif getattr(lmbda, "searches", None) is not None:
            raise ConfigError("a gate that skips takes a number or a gate that does not")
        self.inner: float | Gate = lmbda

    @property
    def metric(self) -> Metric | None:
        """Of the distances that λ is read from, None where any will do."""
        return getattr(self.inner, "metric", None)

    @property
    def kind(self) -> str:
        """What λ is, and how the gate skips."""
        inner = gate_name(self.inner) if isinstance(self.inner, Gate) else f"{self.inner:g}"
        return f"{inner}, skips by {self.skip}"

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """λ of each row; see `Gate.lmbda`. A row that was not searched for has λ 0."""
        if isinstance(self.inner, Gate):
            found = self.inner.lmbda(neighbors, metric, log_p_lm)
        else:
            found = torch.full(
                (neighbors.rows,), self.inner, dtype=torch.float32, device=log_p_lm.device
            )
        return self._where_found(found, neighbors)

    def weigh(
        self, neighbors: Neighbors, log_weights: Tensor, metric: Metric, log_p_lm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """λ of each row as from `lmbda`, and weights as the inner gate wants them; see `Gate`."""
        weigh = getattr(self.inner, "weigh", None)
        if weigh is None:
            return self.lmbda(neighbors, metric, log_p_lm), log_weights
        found, log_weights = weigh(neighbors, log_weights, metric, log_p_lm)
        return self._where_found(found, neighbors), log_weights

    def _where_found(self, lmbda: Tensor, neighbors: Neighbors) -> Tensor:
        if neighbors.every_row:
            return lmbda
        return lmbda.masked_fill(~neighbors.mask.any(-1).to(lmbda.device), 0.0)


class ConfidenceSkip(_Skipping):
    """Skips where the model is sure of its token.

        KNNLogitsProcessor(model, store, lmbda=ConfidenceSkip(0.5, limit=0.9))

    Args:
        lmbda: Where it searches: a number in [0, 1], or a gate.
        limit: Searches where no token has more than this probability, in [0, 1].

    Raises:
        ConfigError: when a value is out of its range.
    """

    skip = "confidence"

    def __init__(self, lmbda: float | Gate, limit: float) -> None:
        super().__init__(lmbda)
        if isinstance(limit, bool) or not 0.0 <= float(limit) <= 1.0:
            raise ConfigError(f"limit must be a probability, not {limit!r}")
        self.limit = float(np.float32(limit))  # as a file keeps it

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
    """Skips where a small network expects little of the neighbors.

    `fit_learned_skip` makes one. The network predicts from the model's distribution how many nats
    the neighbors would win.

    Args:
        lmbda: Where it searches: a number in [0, 1], or a gate.
        threshold: Searches where more than this is expected, in nats.
        arrays: Of the network; see `Network`.

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
        """What the neighbors are expected to win.

        Args:
            features: float32 [n, features], from `skip_features`.

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
