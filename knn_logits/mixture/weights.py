"""w_i = softmax(nearness_i / τ + bonus_i): the only place that weighs features of neighbors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from knn_logits.search.neighbors import Neighbors
from knn_logits.settings.config import KNNConfig

NO_WEIGHT = -math.inf


@dataclass(frozen=True)
class Weighing:
    """bonus_i = shared_i log(suffix_weight) + pointed_i log(pointer_weight)."""

    temperature: float
    suffix_weight: float = 1.0
    pointer_weight: float = 1.0
    shares: tuple[float, ...] | None = None  # of datastores side by side; None: they vote together

    @classmethod
    def of(cls, config: KNNConfig, shares: Sequence[float] | None = None) -> Weighing:
        """The weighing of a memory with these settings."""
        return cls(
            config.temperature,
            config.suffix_weight,
            config.pointer_weight,
            None if shares is None else tuple(shares),
        )

    def bonus(self, neighbors: Neighbors) -> Tensor | None:
        """The part of features in the logits, float32 [rows, k]; None if they add nothing."""
        parts: list[Tensor] = []
        for feature, weight in (
            (neighbors.shared, self.suffix_weight),
            (neighbors.pointed, self.pointer_weight),
        ):
            if feature is not None and weight != 1.0:
                parts.append(feature * math.log(weight))
        return sum(parts[1:], parts[0]) if parts else None

    def log_weights(self, neighbors: Neighbors) -> Tensor:
        """log w_i, float32 [rows, k], -inf for padding. A row sums to 1, or is empty."""
        bonus = self.bonus(neighbors)
        if self.shares is None or not neighbors.k:
            return log_weights(neighbors, self.temperature, bonus)
        parts = neighbors.split(len(self.shares))
        bonuses = [None] * len(parts) if bonus is None else bonus.split(parts[0].k, dim=-1)
        weights = [
            log_weights(part, self.temperature, extra)
            for part, extra in zip(parts, bonuses, strict=True)
        ]
        return shared_weights(weights, self.shares)


def log_weights(neighbors: Neighbors, temperature: float, bonus: Tensor | None = None) -> Tensor:
    """log w_i of each neighbor, from the parts of its logit."""
    nearness = neighbors.nearness
    if not nearness.shape[-1]:
        return nearness
    # Relative to the nearest, no distance leaves the range of floats. Where all neighbors are
    # infinitely far, the nearest counts as finite, since inf - inf is NaN.
    limits = torch.finfo(nearness.dtype)
    scale = 1.0 / min(max(temperature, limits.tiny), 1.0 / limits.tiny)
    logits = (nearness - nearness.amax(dim=-1, keepdim=True).clamp_(min=limits.min)) * scale
    if bonus is not None:
        logits = logits + bonus
    return normalised(logits)


def normalised(logits: Tensor) -> Tensor:
    """Log-softmax in which a row without any finite logit stays without weight."""
    if logits.shape[-1] == 0:
        return logits
    total = torch.logsumexp(logits, dim=-1, keepdim=True)
    # A row without neighbors has the total -inf, and -inf - -inf would be NaN.
    return logits - total.masked_fill(total == NO_WEIGHT, 0.0)


def shared_weights(parts: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """log w_i of sets with fixed shares; an empty set's share goes to the others."""
    log_shares = [math.log(share) if share > 0.0 else NO_WEIGHT for share in shares]
    return normalised(
        torch.cat([part + share for part, share in zip(parts, log_shares, strict=True)], dim=-1)
    )
