"""Gates that skip searches by p_LM alone. He et al. (2021), section 4.1 (adaptive retrieval)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from knn_logits.arrays import Array, Bools, Floats
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.fitted import GateTokens
from knn_logits.mixture.gates.gate import Gate, gate_name
from knn_logits.mixture.gates.network import Network, trained
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
    """Each row's entropy in nats, [rows]."""
    p = log_p.exp()
    entropy = -(p * log_p).sum(-1)
    if bool(entropy.isnan().any()):  # 0 * -inf is NaN
        entropy = torch.special.entr(p).sum(-1)
    return entropy


def skip_features(log_p_lm: Tensor) -> Tensor:
    """float32 [rows, features], finite, in the order of `SKIP_FEATURES`, in nats."""
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


class Skip:
    """A gate that skips searches; `lmbda`, a number or another gate, holds where it searches."""

    skip: ClassVar[str]

    def __init__(self, lmbda: float | Gate) -> None:
        if not isinstance(lmbda, Gate):
            lmbda = KNNConfig(lmbda=lmbda).lmbda  # checks its range
        elif getattr(lmbda, "searches", None) is not None:
            raise ConfigError(
                "a skipping gate cannot wrap another skipping gate: use a number or another gate"
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

    def searches(self, log_p_lm: Tensor) -> Tensor:
        """bool [rows], where to search; see `Gate`."""
        raise NotImplementedError

    @classmethod
    def fit(
        cls, tokens: GateTokens, gains: Floats, share: float, lmbda: float | Gate, seed: int
    ) -> Self:
        """Fits a gate that skips a share of tokens; `gains` is log p - log p_LM, in nats."""
        raise NotImplementedError

    def searched(self, tokens: GateTokens) -> Bools:
        """Which tokens it searches for, bool [tokens]."""
        raise NotImplementedError

    def skip_arrays(self) -> dict[str, Array]:
        """How it skips, as arrays."""
        raise NotImplementedError

    @classmethod
    def from_arrays(cls, lmbda: float | Gate, arrays: Mapping[str, Array]) -> Self:
        """The gate from `skip_arrays`; KeyError or ConfigError if they form none."""
        raise NotImplementedError

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


class ConfidenceSkip(Skip):
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
        """See `Skip.searches`."""
        least = math.log(self.limit) if self.limit > 0.0 else -math.inf
        return log_p_lm.amax(-1) <= least

    @classmethod
    def fit(
        cls, tokens: GateTokens, gains: Floats, share: float, lmbda: float | Gate, seed: int
    ) -> ConfidenceSkip:
        """See `Skip.fit`."""
        assert tokens.skip is not None
        return fit_confidence_skip(tokens.skip[:, 0], share, lmbda)

    def searched(self, tokens: GateTokens) -> Bools:
        """See `Skip.searched`."""
        assert tokens.skip is not None
        least = np.log(self.limit) if self.limit > 0.0 else -np.inf
        return np.asarray(tokens.skip[:, 0] <= least)

    def skip_arrays(self) -> dict[str, Array]:
        """See `Skip.skip_arrays`."""
        return {"limit": np.array([self.limit], np.float32)}

    @classmethod
    def from_arrays(cls, lmbda: float | Gate, arrays: Mapping[str, Array]) -> ConfidenceSkip:
        """See `Skip.from_arrays`."""
        return cls(lmbda, _number("limit", arrays))


class LearnedSkip(Skip):
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
        """See `Skip.searches`."""
        return self.expected(skip_features(log_p_lm)) > self.threshold

    @classmethod
    def fit(
        cls, tokens: GateTokens, gains: Floats, share: float, lmbda: float | Gate, seed: int
    ) -> LearnedSkip:
        """See `Skip.fit`."""
        assert tokens.skip is not None
        return fit_learned_skip(tokens.skip, gains, share, lmbda, seed=seed)

    def searched(self, tokens: GateTokens) -> Bools:
        """See `Skip.searched`."""
        assert tokens.skip is not None
        expected = self.expected(torch.from_numpy(tokens.skip))
        return (expected > self.threshold).numpy()

    def skip_arrays(self) -> dict[str, Array]:
        """See `Skip.skip_arrays`."""
        return {"threshold": np.array([self.threshold], np.float32), **self._network.to_arrays()}

    @classmethod
    def from_arrays(cls, lmbda: float | Gate, arrays: Mapping[str, Array]) -> LearnedSkip:
        """See `Skip.from_arrays`."""
        return cls(lmbda, _number("threshold", arrays), arrays)


def _number(name: str, arrays: Mapping[str, Array]) -> float:
    array = np.asarray(arrays[name], dtype=np.float32)
    if array.shape != (1,):
        raise ConfigError(f"{name} of a gate that skips must be one number")
    return float(array[0])


def fit_confidence_skip(log_p_max: Array, share: float, lmbda: float | Gate) -> ConfidenceSkip:
    """Skips `share` of the tokens, those with the largest log p_LM of the likeliest token."""
    check_share(share)
    limit = np.exp(np.quantile(np.asarray(log_p_max, np.float64), 1.0 - share))
    return ConfidenceSkip(lmbda, float(np.clip(limit, 0.0, 1.0)))


def fit_learned_skip(
    features: Array,
    gains: Array,
    share: float,
    lmbda: float | Gate,
    *,
    units: int = 32,
    steps: int = 1500,
    decay: float = 1e-3,
    seed: int = 0,
) -> LearnedSkip:
    """Skips `share` of the tokens, those where a network expects the least log p - log p_LM."""
    check_share(share)
    features, gains = np.asarray(features, np.float32), np.asarray(gains, np.float64)
    if features.ndim != 2 or features.shape[1] != len(SKIP_FEATURES) or not len(features):
        raise ConfigError(f"features must have the shape [tokens, {len(SKIP_FEATURES)}]")
    if gains.shape != (len(features),) or not np.isfinite(gains).all():
        raise ConfigError("gains must be a finite number for each token")
    targets = torch.from_numpy(gains).float()

    def loss(logits: Tensor, batch: Tensor) -> Tensor:
        return (logits - targets[batch]).square().mean()

    arrays = trained(features, loss, units=units, steps=steps, decay=decay, seed=seed)
    expected = LearnedSkip(0.0, 0.0, arrays).expected(torch.from_numpy(features))
    # The quantile is not interpolated: the threshold is the number of a token, which is skipped.
    order = np.sort(expected.numpy())
    place = int(np.ceil(share * len(order))) - 1
    lowest = float(order[0])
    threshold = float(order[place]) if place >= 0 else lowest - 1e-3 * max(1.0, abs(lowest))
    return LearnedSkip(lmbda, threshold, arrays)


def check_share(share: float) -> None:
    """Refuses a share outside [0, 1]."""
    if isinstance(share, bool) or not 0.0 <= share <= 1.0:
        raise ConfigError(f"the share of tokens to skip must lie between 0 and 1, not {share!r}")
