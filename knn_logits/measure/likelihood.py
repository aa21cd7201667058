"""Likelihoods of tokens under thousands of settings, from one search and one sort of distances.

The sums of weights up to each k give p_kNN for every k at a temperature, and
log p = log p_LM + log(1 - λ + λ p_kNN / p_LM) takes one logarithm for each setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from knn_logits.mixture.vote import Weighing
from knn_logits.search.neighbors import Neighbors

# Rows computed at once. With fewer, calls cost more than sums. With many more, the distances do not
# fit the cache.
_ROWS_AT_ONCE = 512
# p_LM counts as at least e^-80 here, so that p_kNN / p_LM stays within float32.
_LOWEST = -80.0

LMBDAS = (0.0, 0.02, *(round(0.05 * step, 2) for step in range(1, 20)), 0.98)
# The range of temperatures in units of `spread`. At the lower end nearly all weight is on the
# nearest neighbor, and at the upper end weights are nearly equal.
_COLDEST, _HOTTEST = 0.02, 1.0


@dataclass(frozen=True)
class Grid:
    """Settings to try, each list ascending."""

    ks: tuple[int, ...]  # numbers of neighbors of each query
    temperatures: tuple[float, ...]  # temperatures of the softmax over the neighbors
    lmbdas: tuple[float, ...] = LMBDAS  # weights of the neighbors

    @property
    def settings(self) -> int:
        """The number of settings in the grid."""
        return len(self.ks) * len(self.temperatures) * len(self.lmbdas)


@dataclass(frozen=True)
class Choice:
    """The best setting of a grid."""

    k: int  # neighbors of each query
    temperature: float  # temperature of the softmax over the neighbors
    lmbda: float  # weight of the neighbors
    place: tuple[int, int, int]  # the indices of k, the temperature and λ in the grid
    perplexity: float  # perplexity of the tokens that the setting was chosen on


def spread(neighbors: Neighbors) -> float:
    """Measures how far distances are from the nearest, which is the scale for temperatures."""
    nearness = neighbors.nearness.double()
    mask = neighbors.mask & nearness.isfinite()
    counts = mask.sum(dim=-1)
    nearness = nearness[counts > 1].masked_fill(~mask[counts > 1], -math.inf)
    if not nearness.numel():
        return 1.0
    below = (nearness.amax(dim=-1, keepdim=True) - nearness).masked_fill(nearness == -math.inf, 0.0)
    mean = float((below.sum(dim=-1) / counts[counts > 1]).mean())
    return mean if math.isfinite(mean) and mean > 0.0 else 1.0


def temperatures_around(scale: float, through: float) -> tuple[float, ...]:
    """Temperatures in steps of √2."""
    steps = np.arange(
        min(0, math.floor(2 * math.log2(_COLDEST * scale / through))),
        max(0, math.ceil(2 * math.log2(_HOTTEST * scale / through))) + 1,
    )
    return tuple((through * 2.0 ** (steps / 2)).tolist())


class GridLikelihood:
    """Sums the log-likelihood of tokens, in nats, for each setting of a grid."""

    def __init__(self, grid: Grid, weighing: Weighing | None = None) -> None:
        self.grid = grid
        self.weighing = weighing or Weighing(1.0)
        self.sums = torch.zeros(
            len(grid.ks), len(grid.temperatures), len(grid.lmbdas), dtype=torch.float64
        )
        self.lm = 0.0  # under the model alone
        self.tokens = 0

    def add(
        self,
        neighbors: Neighbors,
        targets: Tensor,
        log_p_lm: Tensor,
        keep: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Adds tokens; `keep` gets their p_kNN, float32 [some, ks, temperatures], in order."""
        self.tokens += len(targets)
        self.lm += float(log_p_lm.double().sum())
        for first in range(0, len(targets), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            found, lm = neighbors[rows].to("cpu"), log_p_lm[rows]
            ratio = p_knn_table(found, targets[rows], self.grid, self.weighing.bonus(found))
            if keep is not None:
                keep(ratio.clone())
            # A token without neighbors keeps the model's probability under every setting.
            ratio *= lm.clamp(min=_LOWEST).neg().exp()[:, None, None]
            ratio[~found.mask.any(dim=-1)] = 1.0
            self.sums += float(lm.double().sum())
            buffer = torch.empty_like(ratio)
            for number, lmbda in enumerate(self.grid.lmbdas):
                torch.mul(ratio, lmbda, out=buffer).add_(1.0 - lmbda).log_()
                self.sums[:, :, number] += buffer.sum(dim=0)

    def perplexities(self) -> Tensor:
        """Computes the perplexity under each setting, float64 [ks, temperatures, lmbdas]."""
        return (-self.sums / max(1, self.tokens)).exp()

    @property
    def lm_perplexity(self) -> float:
        return math.exp(-self.lm / max(1, self.tokens))

    def best(self, k_tolerance: float = 0.0, least_k: int = 1) -> Choice:
        perplexities = self.perplexities().nan_to_num(nan=math.inf)
        perplexities[[k < least_k for k in self.grid.ks]] = math.inf
        of_k = perplexities.flatten(1).amin(dim=1)
        place_k = int((of_k <= of_k.min() * (1.0 + k_tolerance)).nonzero()[0])
        place_t, place_l = divmod(int(perplexities[place_k].argmin()), len(self.grid.lmbdas))
        place = place_k, place_t, place_l
        return Choice(
            self.grid.ks[place_k],
            self.grid.temperatures[place_t],
            self.grid.lmbdas[place_l],
            place,
            float(perplexities[place]),
        )


def p_knn_table(
    neighbors: Neighbors, targets: Tensor, grid: Grid, bonus: Tensor | None = None
) -> Tensor:
    """p_kNN of one token in each row, float32 [rows, ks, temperatures]; 0 without neighbors."""
    table = torch.zeros(neighbors.rows, len(grid.ks), len(grid.temperatures), dtype=torch.float32)
    if not neighbors.k:
        return table
    # The segment of the grid's ks that each column is in. Columns beyond the last do not count.
    segments, columns = len(grid.ks), min(neighbors.k, grid.ks[-1])
    below, votes, bonus = _sorted_votes(neighbors, targets, bonus)
    below, votes = below[:, :columns], votes[:, :columns]
    bonus = None if bonus is None else bonus[:, :columns]
    segment = torch.bucketize(torch.arange(columns), torch.tensor(grid.ks), right=True)
    row, column = votes.nonzero(as_tuple=True)
    flat, target = row * columns + column, row * segments + segment[column]
    ends = [min(k, columns) for k in grid.ks]
    # Many shared tokens are a factor beyond float32.
    kind = torch.float32 if bonus is None else torch.float64
    for number, temperature in enumerate(grid.temperatures):
        logits = below / -temperature
        if bonus is not None:
            logits = (logits + bonus).to(kind)
            logits -= logits.amax(dim=1, keepdim=True).clamp(min=torch.finfo(kind).min)
        weights = logits.exp_()
        total = torch.stack(
            [weights[:, a:b].sum(dim=1) for a, b in zip([0, *ends], ends, strict=False)], dim=1
        )
        voted = torch.zeros(neighbors.rows * segments, dtype=kind)
        voted.index_add_(0, target, weights.reshape(-1)[flat])
        total = total.cumsum(dim=1).clamp_(min=torch.finfo(kind).tiny)
        table[:, :, number] = voted.view(-1, segments).cumsum(dim=1) / total
    return table


def _sorted_votes(
    neighbors: Neighbors, targets: Tensor, bonus: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sorted distances beyond the nearest, +inf for padding, with votes and bonuses, [rows, k]."""
    nearness = neighbors.nearness
    distances, order = (
        nearness.neg().masked_fill(~nearness.isfinite(), math.inf).sort(dim=1, stable=True)
    )
    votes = ((neighbors.values == targets.unsqueeze(-1)) & neighbors.mask).gather(1, order)
    votes &= distances.isfinite()
    nearest = distances[:, :1].masked_fill(~distances[:, :1].isfinite(), 0.0)
    return distances - nearest, votes, None if bonus is None else bonus.gather(1, order).float()
