"""log p_kNN from weights, and its mixture with p_LM, in log space. Khandelwal et al. (2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from knn_logits.mixture.weights import normalised

_NOTHING = float("-inf")
# The exponential of anything less is 0 in double precision. Masks (-inf, the least number of the
# type, -1e4) are below it, also in half precision; penalties and a network's scores never are.
_FORBIDDEN = -745.0


def second_vote(
    weights: Tensor, lmbda: float | Tensor, occurrences: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """log w_i [rows, k + n] and λ [rows] of p = s p_2 + (1 - s) (λ p_1 + (1 - λ) p_LM)."""
    first = _votes(weights).to(weights) * lmbda
    second = shares.to(weights) * _votes(occurrences).to(weights)
    first = (1.0 - second) * first
    total = first + second
    parts = [
        part + (share / total).log().nan_to_num(nan=_NOTHING, neginf=_NOTHING).unsqueeze(-1)
        for part, share in ((weights, first), (occurrences, second))
    ]
    return torch.cat(parts, dim=-1), total


def _votes(weights: Tensor) -> Tensor:
    """bool [rows], whether anything has a weight."""
    return (weights > _NOTHING).any(dim=-1)


def drop_impossible(weights: Tensor, values: Tensor, log_p_lm: Tensor) -> Tensor:
    """Drops votes for tokens that a constraint masks, and normalises the others."""
    if weights.shape[-1] == 0:
        return weights
    forbidden = log_p_lm.gather(-1, values) < _FORBIDDEN
    return normalised(weights.masked_fill(forbidden, _NOTHING))


def mix(
    log_p_lm: Tensor,
    weights: Tensor,
    values: Tensor,
    lmbda: float | Tensor,
) -> Tensor:
    """log(λ p_kNN + (1 - λ) p_LM) [rows, vocabulary]; a row without votes is exactly `log_p_lm`."""
    # One pass over the vocabulary; every other step costs rows * k.
    if weights.shape[-1] == 0:
        return log_p_lm
    none = weights.amax(dim=-1, keepdim=True) == _NOTHING
    if isinstance(lmbda, Tensor):
        log_share, log_rest = lmbda.unsqueeze(-1).log(), torch.log1p(-lmbda.unsqueeze(-1))
    else:  # In double precision, since a float32 cannot tell λ from 1 where λ is nearly 1.
        shape = none.shape
        log_share = weights.new_full(shape, math.log(lmbda) if lmbda > 0.0 else _NOTHING)
        log_rest = weights.new_full(shape, math.log1p(-lmbda) if lmbda < 1.0 else _NOTHING)
    log_share = log_share.masked_fill(none, _NOTHING)
    mixed = log_p_lm + log_rest.masked_fill(none, 0.0)
    base = mixed.gather(-1, values)
    # Until they get their final value, the places of voted tokens hold the sums over equal tokens.
    # (Scattering a tensor with one number is three times as fast as scattering the number.)
    mixed.scatter_(-1, values, torch.full_like(weights, _NOTHING))
    mixed.scatter_reduce_(-1, values, weights, "amax")
    # Without any vote the peak is -inf, and -inf - -inf would be NaN.
    peak = mixed.gather(-1, values).clamp_(min=torch.finfo(mixed.dtype).min)
    mixed.scatter_(-1, values, torch.zeros_like(weights))
    mixed.scatter_add_(-1, values, (weights - peak).exp_())
    log_p_knn = mixed.gather(-1, values).log_().add_(peak)
    return mixed.scatter_(-1, values, torch.logaddexp(base, log_p_knn.add_(log_share)))


def log_p_knn_of(weights: Tensor, values: Tensor, chosen: Tensor) -> Tensor:
    """log p_kNN of the tokens `chosen`, int64 [rows] or [rows, tokens]."""
    if chosen.dim() > 1:
        weights, values = weights.unsqueeze(1), values.unsqueeze(1)
    if weights.shape[-1] == 0:
        return torch.full(chosen.shape, _NOTHING, dtype=weights.dtype, device=weights.device)
    return torch.logsumexp(weights.masked_fill(values != chosen.unsqueeze(-1), _NOTHING), dim=-1)


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
