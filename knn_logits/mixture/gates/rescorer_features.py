"""What a `RescorerGate` reads of each neighbor, and how its network scores it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knn_logits.metrics import COMPARISONS, Metric
from knn_logits.mixture.gates.learned import LEAST_LOG_P
from knn_logits.search.neighbors import Neighbors

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
_LEAST_DISTANCE = 1e-3
_LEAST_WEIGHT = 1e-6
# A feature counts as at most so many standard deviations from its mean.
_FARTHEST = 6.0


@dataclass(frozen=True)
class NearestNeighbors:
    """The nearest neighbors of some rows, the nearest first, as a `RescorerGate` reads them."""

    present: Tensor  # bool [rows, k], False for padding, which comes last
    log_weights: Tensor  # float32 [rows, k], log w_i. The weights of a row sum to 1, or are all 0
    nearness: Tensor  # float32 [rows, k], larger is nearer
    log_p: Tensor  # float32 [rows, k], log p_LM of each neighbor's value, -20 at least
    groups: Tensor  # int64 [rows, k], numbers from 0 to k - 1, which are equal where the values are

    @classmethod
    def of(
        cls, neighbors: Neighbors, log_weights: Tensor, log_p_lm: Tensor, order: Tensor
    ) -> NearestNeighbors:
        """Takes columns `order` of the neighbors, int64 [rows, k], the nearest first."""
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
        """float32 [rows, k, 6], finite, in the order of `NEIGHBOR_FEATURES`."""
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
                self._of_value(self.present.to(weights.dtype)).clamp(min=1.0).log(),
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


def scores(
    neighbors: Tensor, row: Tensor, hidden: Tensor, of_row: Tensor, bias: Tensor, out: Tensor
) -> Tensor:
    """r_i [rows, k] = out · tanh(hidden · neighbor + of_row · row + bias)."""
    inside = neighbors @ hidden.T + (row @ of_row.T + bias)[:, None]
    return torch.tanh(inside) @ out
