"""The vote of datastores whose adaptive gates decide on λ, each from its own neighbors.

p = sum of r_j (s_j p_match_j + (1 - s_j) λ_j p_kNN_j) + Π (1 - t_j) p_LM

t_j = s_j + (1 - s_j) λ_j is what gate j gives to its datastore if it is alone, and r_j is
(1 - Π (1 - t_j)) / sum of t_j. So one datastore votes by its gate, and a datastore with nothing
near leaves the vote of the others as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from knn_logits.mixture.gates.adaptive import AdaptiveGate
from knn_logits.mixture.vote import Weighing, any_vote, drop_impossible, joint_vote
from knn_logits.search.matches import Matches
from knn_logits.search.neighbors import Neighbors


@dataclass(frozen=True)
class GatedStore:
    """The gate of one datastore, and what it decides on."""

    gate: AdaptiveGate
    weighing: Weighing
    matches: Matches
    weight: float  # Scales λ and s, in [0, 1]

    def shares(
        self, neighbors: Neighbors, log_p_lm: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """log w_i and the share [rows] of the neighbors, and of the match in `occurrences`."""
        match = neighbors.occurrences[0]
        weights = self.weighing.log_weights(neighbors)
        lmbda, share = self.gate.shares(neighbors, weights, log_p_lm)
        matched = drop_impossible(match.log_weights, match.values, log_p_lm)
        share = share * any_vote(matched)
        weights = drop_impossible(weights, neighbors.values, log_p_lm)
        lmbda = (1.0 - share) * lmbda * any_vote(weights)
        return (weights, self.weight * lmbda), (matched, self.weight * share)


def gated_vote(
    stores: Sequence[GatedStore], neighbors: Neighbors, log_p_lm: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes the weights of the neighbors and then of the matches, and λ of both.

    Args:
        stores: The datastores.
        neighbors: Their neighbors side by side, with the matches as the first `occurrences`.
        log_p_lm: The model's log-probabilities, float32 [rows, vocabulary].

    Returns:
        log w_i, float32 [rows, k + n], and λ, float32 [rows].
    """
    found = [
        store.shares(replace(part, occurrences=(match,)), log_p_lm)
        for store, part, match in zip(
            stores, neighbors.split(len(stores)), neighbors.occurrences, strict=False
        )
    ]
    nearest, matches = zip(*found, strict=True)
    votes, _ = joint_vote([*nearest, *matches])
    given = [share + other for (_, share), (_, other) in found]
    return votes, 1.0 - torch.stack([1.0 - total for total in given]).prod(dim=0)
