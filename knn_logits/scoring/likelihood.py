"""The likelihood of tokens under thousands of settings at once, from one search.

Knows distances, votes and what the model gave each token; no model, no datastore, no files.

The distances of a token's neighbors do not depend on k, temperature and λ. Sorted once, the sums
of their weights up to each k give p_kNN for every k at a temperature, and

    log p = log p_LM + log(1 - λ + λ p_kNN / p_LM)

is then one logarithm a setting. Khandelwal et al. (2020), "Generalization through Memorization",
equations 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from knn_logits.config import Metric
from knn_logits.neighbors import Neighbors

# Rows at once: with fewer, calls cost more than sums; with many more, distances leave the cache.
_ROWS_AT_ONCE = 512
# p_LM counts as at least e^-80 here, so that p_kNN / p_LM is a float32.
_LOWEST = -80.0

LMBDAS = (0.0, 0.02, *(round(0.05 * step, 2) for step in range(1, 20)), 0.98)
# From nearly the nearest neighbor alone to nearly equal weights, in the unit of `spread`.
_COLDEST, _HOTTEST = 0.02, 1.0


@dataclass(frozen=True)
class Grid:
    """Settings to try, each list ascending.

    Attributes:
        ks: Neighbors a query.
        temperatures: Temperatures of the softmax over the neighbors.
        lmbdas: Weights of the neighbors.
    """

    ks: tuple[int, ...]
    temperatures: tuple[float, ...]
    lmbdas: tuple[float, ...] = LMBDAS

    @property
    def settings(self) -> int:
        """How many settings that are."""
        return len(self.ks) * len(self.temperatures) * len(self.lmbdas)


@dataclass(frozen=True)
class Choice:
    """The best setting of a grid.

    Attributes:
        k: Neighbors a query.
        temperature: Temperature of the softmax over the neighbors.
        lmbda: Weight of the neighbors.
        place: Its place in the grid: of k, of the temperature, of λ.
        perplexity: On the tokens it was chosen on.
    """

    k: int
    temperature: float
    lmbda: float
    place: tuple[int, int, int]
    perplexity: float


def powers_up_to(k: int, first: int = 1) -> tuple[int, ...]:
    """first, 2 first, 4 first ... and k itself."""
    found = []
    while first < k:
        found.append(first)
        first *= 2
    return (*found, k)


def spread(neighbors: Neighbors, metric: Metric) -> float:
    """How far distances lie from the nearest: the scale on which temperatures matter.

    Returns:
        The mean over the queries of (mean distance - nearest distance), in the unit of the
        distances; 1 where no query has two neighbors at different distances.
    """
    distances = neighbors.distances.double()
    nearness = -distances if metric == "l2" else distances
    mask = neighbors.mask & distances.isfinite()
    counts = mask.sum(dim=-1)
    nearness = nearness[counts > 1].masked_fill(~mask[counts > 1], -math.inf)
    if not nearness.numel():
        return 1.0
    below = (nearness.amax(dim=-1, keepdim=True) - nearness).masked_fill(nearness == -math.inf, 0.0)
    found = float((below.sum(dim=-1) / counts[counts > 1]).mean())
    return found if math.isfinite(found) and found > 0.0 else 1.0


def temperatures_around(scale: float, through: float) -> tuple[float, ...]:
    """Temperatures in steps of √2 that cover every sensible one.

    Each is half of the next but one, which spares most of the exponentials.

    Args:
        scale: From `spread`.
        through: A temperature that must be among them.
    """
    steps = np.arange(
        min(0, math.floor(2 * math.log2(_COLDEST * scale / through))),
        max(0, math.ceil(2 * math.log2(_HOTTEST * scale / through))) + 1,
    )
    return tuple((through * 2.0 ** (steps / 2)).tolist())


class GridLikelihood:
    """Adds up the log-likelihood of tokens for each setting of a grid.

    Memory does not depend on the number of tokens.

    Args:
        grid: The settings.
        metric: How keys are compared.

    Attributes:
        sums: float64 [ks, temperatures, lmbdas], log-likelihoods in nats.
        lm: The model's own.
        tokens: Tokens added.
    """

    def __init__(self, grid: Grid, metric: Metric) -> None:
        self.grid = grid
        self.metric: Metric = metric
        self.sums = torch.zeros(
            len(grid.ks), len(grid.temperatures), len(grid.lmbdas), dtype=torch.float64
        )
        self.lm = 0.0
        self.tokens = 0

    def add(
        self,
        neighbors: Neighbors,
        targets: Tensor,
        log_p_lm: Tensor,
        keep: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Adds tokens.

        Args:
            neighbors: Of each token's query, for the largest k of the grid or more.
            targets: int64 [rows], the tokens.
            log_p_lm: float32 [rows], log p_LM of each.
            keep: Told p_kNN of the tokens under each k and temperature, float32
                [some, ks, temperatures], a few rows at a time, in order.
        """
        for first in range(0, len(targets), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            self._add(neighbors[rows].to("cpu"), targets[rows], log_p_lm[rows], keep)

    def _add(
        self,
        neighbors: Neighbors,
        targets: Tensor,
        log_p_lm: Tensor,
        keep: Callable[[Tensor], None] | None,
    ) -> None:
        self.tokens += len(targets)
        self.lm += float(log_p_lm.double().sum())
        ratio = p_knn_table(neighbors, self.metric, targets, self.grid)
        if keep is not None:
            keep(ratio.clone())
        # A token without any neighbor keeps the model's probability, whatever the setting.
        ratio *= log_p_lm.clamp(min=_LOWEST).neg().exp()[:, None, None]
        if not neighbors.every_row:
            ratio[~neighbors.mask.any(dim=-1)] = 1.0
        self.sums += float(log_p_lm.double().sum())
        buffer = torch.empty_like(ratio)
        for number, lmbda in enumerate(self.grid.lmbdas):
            torch.mul(ratio, lmbda, out=buffer).add_(1.0 - lmbda).log_()
            self.sums[:, :, number] += buffer.sum(dim=0)

    def perplexities(self) -> Tensor:
        """float64 [ks, temperatures, lmbdas], the perplexity under each setting."""
        return (-self.sums / max(1, self.tokens)).exp()

    def best(self, k_tolerance: float = 0.0, least_k: int = 1) -> Choice:
        """The setting with the largest likelihood.

        Args:
            k_tolerance: How much larger, as a share, the perplexity of a smaller k may be for it
                to be taken: a search for fewer neighbors is faster.
            least_k: The smallest that may be taken.
        """
        found = self.perplexities().nan_to_num(nan=math.inf)
        found[[k < least_k for k in self.grid.ks]] = math.inf
        of_k = found.flatten(1).amin(dim=1)
        place_k = int((of_k <= of_k.min() * (1.0 + k_tolerance)).nonzero()[0])
        place_t, place_l = divmod(int(found[place_k].argmin()), len(self.grid.lmbdas))
        return Choice(
            self.grid.ks[place_k],
            self.grid.temperatures[place_t],
            self.grid.lmbdas[place_l],
            (place_k, place_t, place_l),
            float(found[place_k, place_t, place_l]),
        )


def p_knn_table(neighbors: Neighbors, metric: Metric, targets: Tensor, grid: Grid) -> Tensor:
    """p_kNN of one token a row, for every k and temperature of a grid.

    Args:
        neighbors: Of each row's query; the nearest k of them count.
        metric: How keys are compared.
        targets: int64 [rows].
        grid: The settings.

    Returns:
        float32 [rows, ks, temperatures]; 0 for a row without neighbors.
    """
    shape = (neighbors.rows, len(grid.ks), len(grid.temperatures))
    table = torch.zeros(shape, dtype=torch.float32)
    if not neighbors.k:
        return table
    below, votes = _sorted_votes(neighbors, metric, targets)
    segments = len(grid.ks)
    # The segment of the grid's ks in which each column lies; what lies beyond the last counts not.
    columns = min(neighbors.k, grid.ks[-1])
    below, votes = below[:, :columns], votes[:, :columns]
    segment = torch.bucketize(torch.arange(columns), torch.tensor(grid.ks), right=True)
    row, column = votes.nonzero(as_tuple=True)
    flat, target = row * columns + column, row * segments + segment[column]
    ends = [min(k, columns) for k in grid.ks]
    below = below.contiguous()
    # Of the two temperatures before: a weight at half the temperature is the weight's square.
    before = torch.empty_like(below), torch.empty_like(below)
    for number in reversed(range(len(grid.temperatures))):
        weights, temperature = before[number % 2], grid.temperatures[number]
        if grid.temperatures[number + 2 : number + 3] == (2.0 * temperature,):
            weights.square_()
        else:
            torch.mul(below, -1.0 / temperature, out=weights).exp_()
        total = torch.stack(
            [weights[:, a:b].sum(dim=1) for a, b in zip([0, *ends], ends, strict=False)], dim=1
        )
        voted = torch.zeros(neighbors.rows * segments, dtype=torch.float32)
        voted.index_add_(0, target, weights.view(-1)[flat])
        total = total.cumsum(dim=1).clamp_(min=torch.finfo(torch.float32).tiny)
        table[:, :, number] = voted.view(-1, segments).cumsum(dim=1) / total
    return table


def _sorted_votes(neighbors: Neighbors, metric: Metric, targets: Tensor) -> tuple[Tensor, Tensor]:
    """How much farther than the nearest each neighbor is, nearest first, and whether it votes.

    The vote rides in the last bit of the distance, so that a plain sort keeps both together: it
    is three times as fast as a sort of places, and changes a distance by less than its rounding.

    Returns:
        below: float32 [rows, k], 0 for the nearest, +inf for padding.
        votes: bool [rows, k].
    """
    distances = neighbors.distances if metric == "l2" else -neighbors.distances
    numbers = np.array(distances.numpy(), dtype=np.float32, copy=True)
    votes = ((neighbors.values == targets.unsqueeze(-1)) & neighbors.mask).numpy()
    numbers[~np.isfinite(numbers)] = np.inf
    votes &= np.isfinite(numbers)
    bits = numbers.view(np.int32)
    bits &= ~1
    bits |= votes
    numbers.sort(axis=1)
    voted = torch.from_numpy((numbers.view(np.int32) & 1).astype(bool))
    nearest = numbers[:, :1].copy()
    nearest[~np.isfinite(nearest)] = 0.0
    return torch.from_numpy(numbers - nearest), voted
