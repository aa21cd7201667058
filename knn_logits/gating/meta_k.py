"""`MetaKGate`: how many of the nearest neighbors to trust, and how much, token by token.

Zheng et al. (2021), "Adaptive Nearest Neighbor Machine Translation", section 3 (meta-k network):
a small network shares probability out over {no neighbors, the nearest 1, 2, 4, ..., k}, and

    p(y) = a_0 p_LM(y) + sum over j of a_j p_kNN(y | the nearest k_j)

That is again a mixture of p_LM and one vote: λ = 1 - a_0, and each neighbor's weight is the sum of
what it has in the sets it belongs to. So whatever works with λ and weights works here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.config import Metric, check_metric
from knn_logits.errors import ConfigError
from knn_logits.gating.gate import MOST_BY_NETWORK
from knn_logits.gating.learned import FEATURES, gate_features
from knn_logits.gating.network import Network
from knn_logits.neighbors import Neighbors, nearest_distance

_LARGEST_KS = 64


def meta_k_features(
    neighbors: Neighbors,
    metric: Metric,
    log_p_lm: Tensor,
    ks: Sequence[int],
    *,
    order: Tensor | None = None,
) -> Tensor:
    """What a `MetaKGate` reads.

    Args:
        neighbors: The neighbors of `rows` queries.
        metric: Metric of their distances.
        log_p_lm: The model's log-probabilities, [rows, vocabulary].
        ks: Ascending.
        order: From `nearest_first`, where that is known.

    Returns:
        float32 [rows, 6 + 2 ks], finite: those of `gate_features`, the distance of the k-th
        nearest for each k, and the logarithm of how many values the nearest k have. Where fewer
        were found, all of them count as the nearest k. The features of neighbors are 0 for a row
        that has none.
    """
    plain = gate_features(neighbors, metric, log_p_lm)
    rows = neighbors.rows
    if not neighbors.k:
        return torch.cat([plain, plain.new_zeros(rows, 2 * len(ks))], dim=-1)
    if order is None:
        order = nearest_first(neighbors, metric)
    found = (neighbors.ids >= 0).sum(-1, keepdim=True)
    columns = torch.tensor(ks, device=found.device).expand(rows, -1)
    columns = torch.minimum(columns, found).sub(1).clamp_(min=0)
    distances = neighbors.distances.gather(-1, order.gather(-1, columns))
    values = neighbors.values.gather(-1, order)
    by_value, places = values.sort(dim=-1, stable=True)
    # The first of each value in the order of the values is its nearest, since the sort is stable.
    first = torch.ones_like(by_value)
    first[:, 1:] = (by_value[:, 1:] != by_value[:, :-1]).long()
    different = torch.zeros_like(first).scatter_(-1, places, first).cumsum(-1)
    counts = different.gather(-1, columns).float().log()
    own = torch.cat([distances, counts], dim=-1).masked_fill(found == 0, 0.0)
    limit = torch.finfo(torch.float32).max
    return torch.cat([plain, own.float().to(plain.device)], dim=-1).clamp(-limit, limit)


def nearest_first(neighbors: Neighbors, metric: Metric) -> Tensor:
    """int64 [rows, k], the columns of each row from the nearest to the farthest, padding last.

    Of two equally near, the one of the lower entry comes first: equal contexts have equal keys.
    """
    by_entry = neighbors.ids.argsort(dim=-1)
    distances = neighbors.distances.gather(-1, by_entry)
    order = distances.argsort(dim=-1, descending=metric != "l2", stable=True)
    return by_entry.gather(-1, order)


class MetaKGate:
    """Shares of the model and of the nearest 1, 2, 4, ..., k neighbors, by a small network.

    `fit_meta_k_gate` makes one. A row without neighbors has λ 0; others have 0.999 at most, so that
    the model keeps a say.

    Args:
        metric: What the distances are that it was fitted for.
        ks: Ascending, each at least 1; a neighbor beyond the last has no vote.
        arrays: Of the network, with 6 + 2 ks inputs and 1 + ks outputs; see `Network`.

    Raises:
        ConfigError: when the arrays do not fit together or ks are no such numbers.
    """

    kind = "meta-k"

    def __init__(self, metric: Metric, ks: Sequence[int], arrays: Mapping[str, Any]) -> None:
        self.metric: Metric = check_metric(metric)
        found = np.asarray(ks, dtype=np.float64)
        if (
            found.ndim != 1
            or not 0 < found.size <= _LARGEST_KS
            or not np.isfinite(found).all()
            or (found != np.round(found)).any()
            or (np.diff(found, prepend=0.0) < 1.0).any()
            or found[-1] >= 2**24
        ):
            raise ConfigError("the ks of a MetaKGate must be rising whole numbers above 0")
        self.ks: tuple[int, ...] = tuple(found.astype(int).tolist())
        inputs = len(FEATURES) + 2 * len(self.ks)
        self._network = Network("MetaKGate", inputs, arrays, outputs=1 + len(self.ks))

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """λ of each row; see `Gate.lmbda`. `weigh` says what each neighbor gets of it.

        Raises:
            ConfigError: when the gate was fitted for another metric.
        """
        return self._lmbda_and_shares(neighbors, metric, log_p_lm, None)[0]

    def weigh(
        self, neighbors: Neighbors, log_weights: Tensor, metric: Metric, log_p_lm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """λ of each row, and log w_i of the neighbors; see `Gate`.

        Raises:
            ConfigError: when the gate was fitted for another metric.
        """
        order = nearest_first(neighbors, metric)
        lmbda, shares = self._lmbda_and_shares(neighbors, metric, log_p_lm, order)
        if not neighbors.k:
            return lmbda, log_weights
        weights = log_weights.gather(-1, order)
        ks = torch.tensor(self.ks, device=weights.device)
        within = weights.exp().cumsum(-1)[:, ks.clamp(max=neighbors.k) - 1]
        # Of each set's weights the part that one unit of w_i has; a set without weight has none.
        there = within >= torch.finfo(within.dtype).tiny
        parts = torch.where(there, shares / within, torch.zeros_like(within))
        # A neighbor is in its own set and in all larger ones.
        sums = torch.nn.functional.pad(parts.flip(-1).cumsum(-1).flip(-1), (0, 1))
        ranks = torch.arange(1, neighbors.k + 1, device=weights.device)
        mixed = weights + sums[:, torch.bucketize(ranks, ks)].log()
        total = mixed.logsumexp(-1, keepdim=True)
        # A row without neighbors has the total -inf, and -inf - -inf would be NaN.
        mixed -= total.masked_fill(total.isinf(), 0.0)
        return lmbda, torch.empty_like(log_weights).scatter_(-1, order, mixed)

    def _lmbda_and_shares(
        self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor, order: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if metric != self.metric:
            raise ConfigError(f"this gate reads {self.metric} distances, not {metric}: fit another")
        said = self._network(meta_k_features(neighbors, metric, log_p_lm, self.ks, order=order))
        lmbda = torch.sigmoid(said[:, 1:].logsumexp(-1) - said[:, 0]).clamp(max=MOST_BY_NETWORK)
        lmbda = lmbda.masked_fill(nearest_distance(neighbors, metric).isinf(), 0.0)
        return lmbda, torch.softmax(said[:, 1:], dim=-1)

    def at(self, features: Tensor) -> Tensor:
        """log a_0, log a_1, ... for some features.

        Args:
            features: float32 [n, features], from `meta_k_features`.

        Returns:
            float32 [n, 1 + ks].
        """
        shares = torch.log_softmax(self._network(features), dim=-1)
        model = shares[:, :1].clamp(min=math.log1p(-MOST_BY_NETWORK))
        # What the model is given back is taken from the sets, in proportion.
        sets = torch.log_softmax(shares[:, 1:], dim=-1) + torch.log1p(-model.exp())
        return torch.cat([model, sets], dim=-1)

    def to_arrays(self) -> dict[str, Array]:
        """The gate as arrays, float32."""
        return {"ks": np.array(self.ks, np.float32), **self._network.to_arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> MetaKGate:
        """The gate from its arrays.

        Raises:
            KeyError: when one is missing.
            ConfigError: when their values are no gate's.
        """
        return cls(metric, arrays["ks"].tolist(), arrays)
