"""λ while writing: above 0 only where a passage shares words too rare to be shared by chance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knn_logits.metrics import Metric
from knn_logits.search.neighbors import Neighbors
from knn_logits.store.records import TrustRecord


def trusted(rarity: Tensor, record: TrustRecord, most: float) -> Tensor:
    """λ = min(most, σ(offset + slope * rarity / limit)) [rows]; 0 below the limit, in nats."""
    curve = torch.sigmoid(record.offset + record.slope * (rarity / record.limit))
    return curve.clamp(max=most).masked_fill(rarity < record.limit, 0.0)


@dataclass(frozen=True)
class Trust:
    """The gate that a build chose for writing."""

    record: TrustRecord  # The limit and the curve
    most: float  # The largest λ
    ends: tuple[int, ...] = ()  # λ is 0 where the likeliest token ends the text
    kind = "trust"

    @property
    def line(self) -> str:
        """One line: where the memory votes, and how much."""
        return (
            f"trust: 0 unless at least {self.record.limit:g} nats of the text match, "
            f"elsewhere at most {self.most:g}"
        )

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:  # noqa: ARG002
        """See `Gate.lmbda`. The neighbors are those of `search.endings`."""
        if neighbors.rarity is None:
            return log_p_lm.new_zeros(neighbors.rows)
        lmbda = trusted(neighbors.rarity, self.record, self.most)
        if self.ends and neighbors.k:
            # An end is the likeliest where no token is likelier. `argmax` takes ten times as long.
            ends = log_p_lm[:, list(self.ends)].amax(dim=-1)
            ending = ends >= log_p_lm.amax(dim=-1)
            lmbda = lmbda.masked_fill(ending.to(lmbda.device), 0.0)
        return lmbda
