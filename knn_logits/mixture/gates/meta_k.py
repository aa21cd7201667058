"""`MetaKGate`: how many of the nearest neighbors count. Zheng et al. (2021), section 3 (meta-k)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric, as_distance, check_metric
from knn_logits.mixture.gates.gate import MOST_BY_NETWORK, FittedGate, Network, trained
from knn_logits.search.neighbors import Neighbors, nearest_nearness

_LARGEST_KS = 64
_FEATURES = (
    "distance of the nearest",
    "mean distance of the nearest few",
    "share of the nearest few that vote as the nearest does",
    "log p_LM of the nearest one's value",
    "log p_LM of the likeliest token",
    "entropy of p_LM",
)
_FEW_NEIGHBORS = 16
_LEAST_LOG_P = -20.0


def meta_k_features(
    neighbors: Neighbors,
    metric: Metric,
    log_p_lm: Tensor,
    ks: Sequence[int],
    *,
    order: Tensor | None = None,
) -> Tensor:
    """`_FEATURES`, and for each k the k-th distance and ln of the number of values up to it.

    float32 [rows, features], finite; the neighbors' features are 0 for a row without any.
    """
    order = nearest_first(neighbors) if order is None else order
    model = torch.stack([log_p_lm.amax(-1), torch.special.entr(log_p_lm.exp()).sum(-1)], dim=-1)
    near, by_k = (torch.zeros(neighbors.rows, width) for width in (4, 2 * len(ks)))
    if neighbors.k:
        distances = as_distance(neighbors.nearness.gather(-1, order), metric)
        values = neighbors.values.gather(-1, order)
        present = neighbors.ids.gather(-1, order) >= 0
        some, few = present[:, :_FEW_NEIGHBORS], values[:, :_FEW_NEIGHBORS]
        number = some.sum(-1).clamp(min=1)
        nearest = [
            distances[:, 0],
            distances[:, :_FEW_NEIGHBORS].masked_fill(~some, 0.0).sum(-1) / number,
            ((few == few[:, :1]) & some).sum(-1) / number,
            log_p_lm.gather(-1, few[:, :1])[:, 0].clamp(min=_LEAST_LOG_P),
        ]
        near = torch.stack(nearest, dim=-1).masked_fill(~present[:, :1], 0.0)
        columns = torch.tensor(ks, device=present.device).expand(neighbors.rows, -1)
        columns = torch.minimum(columns, present.sum(-1, keepdim=True)).sub(1).clamp_(min=0)
        by_value, places = values.sort(dim=-1, stable=True)
        # The sort is stable, so the first neighbor with a value is the nearest with that value.
        first = torch.ones_like(by_value)
        first[:, 1:] = (by_value[:, 1:] != by_value[:, :-1]).long()
        different = torch.zeros_like(first).scatter_(-1, places, first).cumsum(-1)
        counts = different.gather(-1, columns).float().log()
        by_k = torch.cat([distances.gather(-1, columns), counts], dim=-1)
        by_k = by_k.masked_fill(~present[:, :1], 0.0)
    limit = torch.finfo(torch.float32).max
    features = torch.cat([part.to(model) for part in (near, model, by_k)], dim=-1)
    return features.clamp(-limit, limit)


def nearest_first(neighbors: Neighbors) -> Tensor:
    """Columns of each row, the nearest first, padding last; ties by id."""
    by_entry = neighbors.ids.argsort(dim=-1)
    order = neighbors.nearness.gather(-1, by_entry).argsort(dim=-1, descending=True, stable=True)
    return by_entry.gather(-1, order)


class MetaKGate(FittedGate):
    """A network that chooses the shares of the model and of the nearest 1, 2, 4, ..., k neighbors.

    `tune` fits a gate. λ is at most 0.999, so that the model's share is never 0. A row without
    neighbors has λ 0.

    Args:
        metric: The metric of the distances that the gate was fitted for.
        ks: The values of k, ascending, each at least 1. Neighbors beyond the last have no vote.
        arrays: The arrays of a `Network` with 6 + 2 ks inputs and 1 + ks outputs.

    Raises:
        ConfigError: when the arrays do not fit together or `ks` are not such numbers.
    """

    kind = "meta-k"

    def __init__(self, metric: Metric, ks: Sequence[int], arrays: Mapping[str, Any]) -> None:
        self.metric: Metric = check_metric(metric)
        numbers = np.asarray(ks, dtype=np.float64)
        ascending = numbers.ndim == 1 and (np.diff(numbers, prepend=0.0) >= 1.0).all()
        if not ascending or (numbers % 1.0).any() or not 0 < numbers.size <= _LARGEST_KS:
            raise ConfigError("the ks of a MetaKGate must be ascending whole numbers above 0")
        self.ks: tuple[int, ...] = tuple(numbers.astype(int).tolist())
        inputs = len(_FEATURES) + 2 * len(self.ks)
        self._network = Network("MetaKGate", inputs, arrays, 1 + len(self.ks))

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """Returns λ of each row, as `Gate.lmbda` says. `weigh` divides it among the neighbors."""
        return self.weigh(neighbors, neighbors.nearness, metric, log_p_lm)[0]

    def weigh(
        self, neighbors: Neighbors, log_weights: Tensor, metric: Metric, log_p_lm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns λ of each row, and log w_i of the neighbors, as `Gate` says."""
        order = nearest_first(neighbors)
        outputs = self._network(meta_k_features(neighbors, metric, log_p_lm, self.ks, order=order))
        lmbda = torch.sigmoid(outputs[:, 1:].logsumexp(-1) - outputs[:, 0])
        lmbda = lmbda.clamp(max=MOST_BY_NETWORK)
        lmbda = lmbda.masked_fill(nearest_nearness(neighbors).isinf(), 0.0)
        shares = torch.softmax(outputs[:, 1:], dim=-1)
        if not neighbors.k:
            return lmbda, log_weights
        weights = log_weights.gather(-1, order)
        ks = torch.tensor(self.ks, device=weights.device)
        within = weights.exp().cumsum(-1)[:, ks.clamp(max=neighbors.k) - 1]
        # The share of a set for one unit of w_i in it. A set without weight has no share.
        has_weight = within >= torch.finfo(within.dtype).tiny
        parts = torch.where(has_weight, shares / within, torch.zeros_like(within))
        # A neighbor belongs to its own set and to all larger ones.
        sums = torch.nn.functional.pad(parts.flip(-1).cumsum(-1).flip(-1), (0, 1))
        ranks = torch.arange(1, neighbors.k + 1, device=weights.device)
        mixed = weights + sums[:, torch.bucketize(ranks, ks)].log()
        total = mixed.logsumexp(-1, keepdim=True)
        # A row without neighbors has the total -inf, and -inf - -inf would be NaN.
        mixed -= total.masked_fill(total.isinf(), 0.0)
        return lmbda, torch.empty_like(log_weights).scatter_(-1, order, mixed)

    def at(self, features: Tensor) -> Tensor:
        """log a_0, log a_1, ... for `meta_k_features`, as float32 [n, 1 + ks]."""
        shares = torch.log_softmax(self._network(features), dim=-1)
        model = shares[:, :1].clamp(min=math.log1p(-MOST_BY_NETWORK))
        # If the model's share is raised, the sets lose in proportion.
        sets = torch.log_softmax(shares[:, 1:], dim=-1) + torch.log1p(-model.exp())
        return torch.cat([model, sets], dim=-1)

    def to_arrays(self) -> dict[str, Array]:
        """See `FittedGate.to_arrays`."""
        return {"ks": np.array(self.ks, np.float32), **super().to_arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> MetaKGate:
        """See `FittedGate.from_arrays`."""
        return cls(metric, arrays["ks"].tolist(), arrays)


def fit_meta_k_gate(
    features: Array,
    ks: Sequence[int],
    log_p_lm: Array,
    log_p_knn: Array,
    metric: Metric,
    seed: int = 0,
) -> MetaKGate:
    """Minimises -log(a_0 p_LM + Σ a_j p_kNN of the nearest k_j) over tokens with neighbors.

    Args:
        features: float32 [tokens, features], the result of `meta_k_features`.
        ks: The values of k, ascending.
        log_p_lm: [tokens], log p_LM of the text's tokens.
        log_p_knn: [tokens, ks], log p_kNN of the nearest k_j, -inf where none of them votes.
        metric: The metric of the distances.
        seed: Seed of the first weights and of the batches.

    Returns:
        The gate.

    Raises:
        ConfigError: when no token is left.
    """
    sides = np.column_stack([log_p_lm, log_p_knn]).astype(np.float64)
    # A token that nothing gives a probability is left out.
    usable = sides.max(-1) > -np.inf
    if not usable.any():
        raise ConfigError(
            "no token has a neighbor: fit the gate on text similar to the datastore's"
        )
    sides = sides[usable]
    log_p = torch.from_numpy(np.maximum(sides, sides.max(-1, keepdims=True) - 60.0)).float()

    def loss(logits: Tensor, batch: Tensor) -> Tensor:
        return -torch.logsumexp(torch.log_softmax(logits, -1) + log_p[batch], -1).mean()

    # Longer training would memorise the tokens. The mean of several networks' outputs would favor
    # the model, since each may trust another of two sets that are alike.
    how: Any = {"units": 32, "steps": 300, "batch": 4096, "decay": 0.3}
    arrays = trained(features[usable], loss, **how, seed=seed, outputs=1 + len(ks))
    return MetaKGate(metric, ks, arrays)
