"""`DistanceGate`: λ by the nearest neighbor's distance. Drozdov et al. (2022), interpolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array, Floats
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric, as_distance, check_metric
from knn_logits.mixture.gates.fitted import FittedGate, GateTokens, coefficients, usable_tokens
from knn_logits.progress import Progress, no_progress
from knn_logits.search.neighbors import Neighbors, nearest_nearness
from knn_logits.store.layout import LARGEST_IN_GATE

# A bin has at least so many tokens.
_TOKENS_A_BIN = 25


class DistanceGate(FittedGate):
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

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """Returns λ of each row, as `Gate.lmbda` says."""
        self.check(metric)
        nearness = nearest_nearness(neighbors)
        nearest = as_distance(nearness, metric)
        return self.at(nearest).masked_fill(nearest.isinf(), 0.0)

    def at(self, features: Tensor) -> Tensor:
        """Returns λ at some distances.

        Args:
            features: [n], distances of the nearest neighbors.

        Returns:
            float32 [n], in [0, 1].
        """
        nearest = features
        middles, lmbdas = self.middles.to(nearest.device), self.lmbdas.to(nearest.device)
        if len(middles) == 1:
            return lmbdas.expand(len(nearest))
        inside = nearest.float().clamp(middles[0], middles[-1])
        above = torch.searchsorted(middles, inside).clamp_(1, len(middles) - 1)
        left, right = middles[above - 1], middles[above]
        part = (inside - left) / (right - left)
        return torch.lerp(lmbdas[above - 1], lmbdas[above], part)

    @classmethod
    def features(
        cls, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor, ks: Sequence[int]
    ) -> Tensor:
        """See `FittedGate.features`."""
        nearest: Tensor = as_distance(nearest_nearness(neighbors), metric)
        return nearest.unsqueeze(-1)

    @classmethod
    def fit(
        cls, tokens: GateTokens, metric: Metric, seed: int, progress: Progress = no_progress
    ) -> DistanceGate:
        """See `FittedGate.fit`."""
        return fit_distance_gate(tokens.nearest, tokens.lm, tokens.knn, metric)

    def log_p(self, tokens: GateTokens, progress: Progress = no_progress) -> Floats:
        """See `FittedGate.log_p`."""
        return tokens.mixed(self.at(torch.from_numpy(tokens.nearest).float().clamp(-3e38, 3e38)))

    def to_arrays(self) -> dict[str, Array]:
        """See `FittedGate.to_arrays`."""
        return {"middles": self.middles.cpu().numpy(), "lmbdas": self.lmbdas.cpu().numpy()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> DistanceGate:
        """See `FittedGate.from_arrays`."""
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


def fit_distance_gate(
    nearest: Array,
    log_p_lm: Array,
    log_p_knn: Array,
    metric: Metric,
    *,
    bins: int = 32,
    smoothing: float = 10.0,
) -> DistanceGate:
    """Fits the `DistanceGate` that makes a text likeliest.

    All bins hold the same number of tokens. The coefficients are found by expectation maximisation.
    λ at a distance is a weighted mean of the coefficients at the two nearest middles. So the
    mixture has one component for each pair of a middle and the model or the neighbors, and every
    round has a closed form. The likelihood is concave in the coefficients, so it has one maximum.
    (Drozdov et al., 2022, tune the coefficient of each bin separately.)

    Args:
        nearest: [n], the nearest neighbor's distance, or its similarity for "ip" and "cosine". A
            token without neighbors has a number that is not finite. It is left out, since no gate
            changes it.
        log_p_lm: [n], log p_LM of the text's tokens.
        log_p_knn: [n], log p_kNN of the text's tokens, -inf where no neighbor voted for the token.
        metric: The metric of the distances.
        bins: The most bins. There are fewer if there are few tokens.
        smoothing: How strongly each coefficient is pulled towards the best λ of the whole text,
            above 0. The pull counts like so many tokens, so a bin with little data stays near it.

    Returns:
        The gate.

    Raises:
        ConfigError: when the arrays do not fit together or no token is left.
    """
    if isinstance(bins, bool) or bins < 1 or not smoothing > 0.0:
        raise ConfigError("bins must be at least 1 and smoothing above 0")
    (nearest,), lm, knn = usable_tokens([nearest], log_p_lm, log_p_knn)
    number = max(1, min(bins, len(nearest) // _TOKENS_A_BIN))
    # The gate stores float32. Middles that become equal in float32 are merged.
    places = np.quantile(nearest, (np.arange(number) + 0.5) / number).astype(np.float32)
    middles = np.unique(places).astype(np.float64)
    peak = np.maximum(lm, knn)
    lm, knn = np.exp(lm - peak), np.exp(knn - peak)
    nothing = np.zeros(len(nearest))
    overall = coefficients(nothing.astype(np.int64), nothing, lm, knn, 1, 0.5, 1.0)
    above = np.clip(np.searchsorted(middles, nearest), 1, max(1, len(middles) - 1))
    if len(middles) > 1:
        gap = middles[above] - middles[above - 1]
        part = np.clip((nearest - middles[above - 1]) / gap, 0.0, 1.0)
        lmbdas = coefficients(above - 1, part, lm, knn, len(middles), float(overall[0]), smoothing)
    else:
        lmbdas = overall
    return DistanceGate(metric, middles, np.clip(lmbdas, 0.0, 1.0))
