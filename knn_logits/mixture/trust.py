"""How far a memory is trusted at a step: λ by how rare the words are that a passage shares.

A passage has earned trust where it shares the end of the text word for word, and where these words
are too rare to be shared by chance. Below a limit λ is 0, so that the text is the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knn_logits.metrics import Metric
from knn_logits.search.neighbors import Neighbors
from knn_logits.store.records import TrustRecord


def trusted(rarity: Tensor, record: TrustRecord, most: float) -> Tensor:
    """Computes λ of each row: min(most, σ(offset + slope * rarity / limit)), or 0 below the limit.

    Args:
        rarity: float32 [rows], how rare the shared words are: the sum of -ln of each token's
            frequency in the corpus, in nats; 0 where nothing is shared.
        record: The limit and the curve that the build chose.
        most: The largest λ, in [0, 1].

    Returns:
        float32 [rows], in [0, most].
    """
    curve = torch.sigmoid(record.offset + record.slope * (rarity / record.limit))
    return curve.clamp(max=most).masked_fill(rarity < record.limit, 0.0)


@dataclass(frozen=True)
class Trust:
    """The gate that a build chose for writing. It is 0 where the memory has not earned trust.

    Attributes:
        record: The limit and the curve.
        most: The largest λ.
        ends: Tokens that end a text. λ is 0 where the model's likeliest token is one of them.
    """

    record: TrustRecord
    most: float
    ends: tuple[int, ...] = ()
    kind = "trust"

    @property
    def line(self) -> str:
        """Says when the memory speaks, and how much."""
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
