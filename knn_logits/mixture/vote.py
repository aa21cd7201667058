"""`Vote` is the answer of a memory at one step, for a batch of rows.

It holds tensors, and computes the mixture only when it is asked for:
p(y) = lmbda * p_kNN(y) + (1 - lmbda) * p_LM(y), Khandelwal et al. (2020), equation 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knn_logits.locks import cached_property
from knn_logits.mixture.distribution import log_p_knn_of, mix
from knn_logits.search.neighbors import Neighbors, nearest_nearness


@dataclass(frozen=True)
class Candidates:
    """The likeliest next tokens of each row and the model's own favorite, in no order."""

    tokens: Tensor  # int64 [rows, candidates], the tokens
    p: Tensor  # float32 [rows, candidates], their probabilities in the mixture
    p_lm: Tensor  # float32 [rows, candidates], their probabilities by the model alone
    p_knn: Tensor  # float32 [rows, candidates], their probabilities by the neighbors alone

    def __getitem__(self, row: int) -> list[tuple[int, float, float, float]]:
        """Returns (token, p, p_lm, p_knn) of a row's candidates, the likeliest first, each once."""
        parts = (self.tokens, self.p, self.p_lm, self.p_knn)
        candidates = zip(*(part[row].tolist() for part in parts), strict=True)
        by_token = {candidate[0]: candidate for candidate in candidates}
        return sorted(by_token.values(), key=lambda candidate: -candidate[1])


@dataclass(frozen=True, eq=False)
class Vote:
    """The neighbors' vote on the next token of each row, with the model's distribution.

    With the ∞-gram its occurrences are among the neighbors, and λ is the weight of both together;
    `neighbors.matched` tells them apart.

    Attributes:
        neighbors: The neighbors of `rows` queries, on the device of `log_p_lm`.
        log_weights: log w_i of the votes that count, float32 [rows, k]; -inf for no vote.
        lmbda: The weight of the neighbors, if there are any: one number, or a tensor [rows].
        log_p_lm: The model's log-probabilities, float32 [rows, vocabulary].
        mixture: `log_p`, if it was computed already.
        near_within: The nearness from which on a neighbor is near. None if that is not known.
    """

    neighbors: Neighbors
    log_weights: Tensor
    lmbda: float | Tensor
    log_p_lm: Tensor
    mixture: Tensor | None = None
    near_within: float | None = None

    @cached_property
    def near(self) -> Tensor | None:
        """Whether a neighbor of each row is near, bool [rows]; None if that is not known."""
        limit = self.near_within
        return None if limit is None else nearest_nearness(self.neighbors) >= limit

    @cached_property
    def log_p(self) -> Tensor:
        """The mixture's log-probabilities, float32 [rows, vocabulary]."""
        if self.mixture is not None:
            return self.mixture
        return mix(self.log_p_lm, self.log_weights, self.neighbors.values, self.lmbda)

    @cached_property
    def lmbdas(self) -> Tensor:
        """The weight of each row's neighbors, float32 [rows]; 0 for a row without neighbors."""
        lmbdas = torch.as_tensor(self.lmbda, dtype=torch.float32, device=self.log_p_lm.device)
        lmbdas = lmbdas.expand(self.neighbors.rows)
        voted = self.log_weights.isfinite().any(dim=-1) if self.neighbors.k else torch.zeros(1)
        return lmbdas * voted.to(lmbdas)

    def influence(self, row: int, token: int) -> float:
        """Returns the neighbors' share of a token's probability, in [0, 1]."""
        share_of_model = (1.0 - self.lmbdas[row]) * (
            self.log_p_lm[row, token] - self.log_p[row, token]
        ).exp()
        return min(1.0, max(0.0, 1.0 - float(share_of_model)))

    def candidates(self, number: int) -> Candidates:
        """Returns the likeliest next tokens.

        Args:
            number: How many of the mixture's likeliest tokens are wanted. The model's own
                favourite is added to them.
        """
        likeliest = self.log_p.topk(min(number, self.log_p.shape[-1]), dim=-1).indices
        tokens = torch.cat([likeliest, self.log_p_lm.argmax(dim=-1, keepdim=True)], dim=-1)
        logs = (
            self.log_p.gather(-1, tokens),
            self.log_p_lm.gather(-1, tokens),
            log_p_knn_of(self.log_weights, self.neighbors.values, tokens),
        )
        return Candidates(tokens.cpu(), *(log_part.exp().cpu() for log_part in logs))
