"""The vote of the neighbors: their weights, the mixture with the model, and `Vote` with both.

w_i = softmax(nearness_i / τ + bonus_i), p_kNN(y) = sum of w_i with v_i = y, and
p(y) = λ p_kNN(y) + (1 - λ) p_LM(y), in log space. Khandelwal et al. (2020), equations 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from knn_logits.locks import cached_property
from knn_logits.search.neighbors import Neighbors
from knn_logits.settings.config import KNNConfig

NO_WEIGHT = -math.inf
# The exponential of anything less is 0 in double precision. Masks (-inf, the least number of the
# type, -1e4) are below it, also in half precision; penalties and a network's scores never are.
_FORBIDDEN = -745.0


@dataclass(frozen=True)
class Weighing:
    """bonus_i = shared_i log(suffix_weight) + pointed_i log(pointer_weight)."""

    temperature: float
    suffix_weight: float = 1.0
    pointer_weight: float = 1.0

    @classmethod
    def of(cls, config: KNNConfig) -> Weighing:
        return cls(config.temperature, config.suffix_weight, config.pointer_weight)

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
        nearness = neighbors.nearness
        if not nearness.shape[-1]:
            return nearness
        # Relative to the nearest, no distance leaves the range of floats. Where all neighbors are
        # infinitely far, the nearest counts as finite, since inf - inf is NaN.
        limits = torch.finfo(nearness.dtype)
        scale = 1.0 / min(max(self.temperature, limits.tiny), 1.0 / limits.tiny)
        logits = (nearness - nearness.amax(dim=-1, keepdim=True).clamp_(min=limits.min)) * scale
        bonus = self.bonus(neighbors)
        return normalised(logits if bonus is None else logits + bonus)


def normalised(logits: Tensor) -> Tensor:
    """Log-softmax in which a row without any finite logit stays without weight."""
    return logits.log_softmax(dim=-1).nan_to_num_(nan=NO_WEIGHT, neginf=NO_WEIGHT)


def largest(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """The largest number of each row and its column, [rows] each."""
    # On a CPU, NumPy takes a quarter of the time.
    if log_p.device.type == "cpu":
        columns = torch.from_numpy(log_p.detach().numpy().argmax(-1))
    else:
        columns = log_p.argmax(dim=-1)
    return log_p.gather(-1, columns.unsqueeze(-1)).squeeze(-1), columns


def joint_vote(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """log w_i [rows, sum of k] and λ [rows] of p = sum of share_j p_j + (1 - λ) p_LM.

    `parts` are log w_i [rows, k_j] and the share [rows] of each vote, 0 for an empty one.
    """
    shares = [share.to(weights) for weights, share in parts]
    total = sum(shares[1:], shares[0])
    weights = [
        part + (share / total).log().nan_to_num(nan=NO_WEIGHT, neginf=NO_WEIGHT).unsqueeze(-1)
        for (part, _), share in zip(parts, shares, strict=True)
    ]
    return torch.cat(weights, dim=-1), total


def second_vote(
    weights: Tensor, lmbda: float | Tensor, occurrences: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """log w_i [rows, k + n] and λ [rows] of p = s p_2 + (1 - s) (λ p_1 + (1 - λ) p_LM)."""
    shares = shares.to(weights) * any_vote(occurrences)
    first = (1.0 - shares) * lmbda * any_vote(weights)
    return joint_vote([(weights, first), (occurrences, shares)])


def any_vote(weights: Tensor) -> Tensor:
    """bool [rows], whether anything has a weight."""
    return (weights > NO_WEIGHT).any(dim=-1)


def drop_impossible(weights: Tensor, values: Tensor, log_p_lm: Tensor) -> Tensor:
    """Drops votes for tokens that a constraint masks, and normalises the others."""
    if weights.shape[-1] == 0:
        return weights
    forbidden = log_p_lm.gather(-1, values) < _FORBIDDEN
    return normalised(weights.masked_fill(forbidden, NO_WEIGHT))


def mix(log_p_lm: Tensor, weights: Tensor, values: Tensor, lmbda: float | Tensor) -> Tensor:
    """log(λ p_kNN + (1 - λ) p_LM) [rows, vocabulary]; a row without votes is exactly `log_p_lm`."""
    # One pass over the vocabulary; every other step costs rows * k.
    log_share, log_rest = _log_shares(weights, lmbda)
    return _add_votes(log_p_lm + log_rest, weights, values, log_share)


def _log_shares(weights: Tensor, lmbda: float | Tensor) -> tuple[Tensor, Tensor]:
    """log λ and log(1 - λ), [rows, 1]; λ is 0 for a row without votes."""
    voted = any_vote(weights).unsqueeze(-1)
    if isinstance(lmbda, Tensor):
        shares = lmbda.unsqueeze(-1) * voted
        return shares.log(), torch.log1p(-shares)
    # In double precision, since a float32 cannot tell λ from 1 where λ is nearly 1.
    log_share = weights.new_full(voted.shape, math.log(lmbda) if lmbda > 0.0 else NO_WEIGHT)
    log_rest = weights.new_full(voted.shape, math.log1p(-lmbda) if lmbda < 1.0 else NO_WEIGHT)
    return log_share.masked_fill_(~voted, NO_WEIGHT), log_rest.masked_fill_(~voted, 0.0)


def _add_votes(scores: Tensor, weights: Tensor, values: Tensor, log_share: Tensor) -> Tensor:
    """log(exp(scores) + exp(log_share) p_kNN) in place, at the tokens with votes."""
    base = scores.gather(-1, values)
    # Until they get their final value, the places of voted tokens hold the sums over equal tokens.
    scores.scatter_reduce_(-1, values, weights.exp(), "sum", include_self=False)
    log_p_knn = scores.gather(-1, values).log_()
    return scores.scatter_(-1, values, torch.logaddexp(base, log_p_knn.add_(log_share)))


def log_p_knn_of(weights: Tensor, values: Tensor, chosen: Tensor) -> Tensor:
    """log p_kNN of the tokens `chosen`, int64 [rows] or [rows, tokens]."""
    if chosen.dim() > 1:
        weights, values = weights.unsqueeze(1), values.unsqueeze(1)
    if weights.shape[-1] == 0:
        return torch.full(chosen.shape, NO_WEIGHT, dtype=weights.dtype, device=weights.device)
    return torch.logsumexp(weights.masked_fill(values != chosen.unsqueeze(-1), NO_WEIGHT), dim=-1)


def mix_row(log_p_lm: Tensor, log_p_knn: Tensor, lmbda: Tensor) -> Tensor:
    """log p [rows] of one token a row, from its two log-probabilities."""
    return torch.logaddexp(log_p_lm + torch.log1p(-lmbda), log_p_knn + lmbda.log())


def influences(
    weights: Tensor, values: Tensor, chosen: Tensor, log_p: Tensor, lmbda: Tensor
) -> Tensor:
    """λ w_i [v_i = y] / p(y) of each neighbor, [rows, k]: its part of the chosen token's p."""
    share = (weights + (lmbda.log() - log_p).unsqueeze(-1)).exp()
    # A processor behind this one may choose a token that the mixture gives no probability.
    return share.masked_fill((values != chosen.unsqueeze(-1)) | share.isnan(), 0.0)


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
    """

    neighbors: Neighbors
    log_weights: Tensor
    lmbda: float | Tensor
    log_p_lm: Tensor
    mixture: Tensor | None = None

    def __getitem__(self, rows: slice) -> Vote:
        """The vote of some rows, whose mixture is not computed yet."""
        lmbda = self.lmbda[rows] if isinstance(self.lmbda, Tensor) else self.lmbda
        return Vote(self.neighbors[rows], self.log_weights[rows], lmbda, self.log_p_lm[rows])

    @cached_property
    def log_p(self) -> Tensor:
        """The mixture's log-probabilities, float32 [rows, vocabulary]."""
        if self.mixture is not None:
            return self.mixture
        return mix(self.log_p_lm, self.log_weights, self.neighbors.values, self.lmbda)

    def mixed_into(self, scores: Tensor) -> Tensor:
        """Changes the model's scores, of any scale, in place: their softmax is the mixture then.

        Only tokens with votes change, unless λ is 1, since p / p_LM is the same for all others.
        """
        log_p_lm, values, weights = self.log_p_lm, self.neighbors.values, self.log_weights
        if self.mixture is not None:
            return scores.add_((self.mixture - log_p_lm).nan_to_num_(0.0, neginf=NO_WEIGHT))
        log_share, log_rest = _log_shares(weights, self.lmbda)
        # A forbidden token, for which the difference of two infinities is NaN, has no vote.
        scale = (scores.gather(-1, values) - log_p_lm.gather(-1, values)).nan_to_num_(0.0)
        nothing_left = log_rest == NO_WEIGHT
        if bool(nothing_left.any()):
            scores.masked_fill_(nothing_left, NO_WEIGHT)
            log_rest = log_rest.masked_fill(nothing_left, 0.0)
        return _add_votes(scores, weights, values, scale + (log_share - log_rest))

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
