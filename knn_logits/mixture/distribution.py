"""From weights of neighbors to log p_kNN, and the mixture with the language model's distribution.

Tensors in, tensors out: nothing here knows of models, indexes or files. Everything is computed in
log space in float32 (float64 stays float64).

    p_kNN(y) = sum of w_i over the neighbors whose value is y
    p(y)     = lmbda * p_kNN(y) + (1 - lmbda) * p_LM(y)

`weights.py` makes the w_i. Khandelwal et al. (2020), "Generalization through Memorization",
equations 2 and 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from knn_logits.mixture.weights import normalised

_NOTHING = float("-inf")
# The exponential of anything less is 0 in double precision. Masks are far below this number, also
# in half precision. The scores of a network never spread so far.
_FORBIDDEN = -745.0


def second_vote(
    weights: Tensor, lmbda: float | Tensor, more: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """Two votes as one: p = s p_2 + (1 - s) (λ p_1 + (1 - λ) p_LM).

    Args:
        weights: log w_i of the first vote, [rows, k], each row summing to 1 or empty.
        lmbda: λ, a number or one a row, [rows].
        more: log w_i of the second, [rows, n], likewise.
        shares: s, [rows].

    Returns:
        log w_i of all, [rows, k + n], and the weight of both together, [rows]. A vote without any
        weight has no share.
    """
    weight = torch.as_tensor(lmbda, dtype=weights.dtype, device=weights.device)
    first = weight.expand(len(weights)) * _votes(weights).to(weights)
    second = shares.to(weights) * _votes(more).to(weights)
    first = (1.0 - second) * first
    total = first + second
    parts = [
        part + (share / total).log().nan_to_num(nan=_NOTHING, neginf=_NOTHING).unsqueeze(-1)
        for part, share in ((weights, first), (more, second))
    ]
    return torch.cat(parts, dim=-1), total


def second_vote_of(
    log_p_knn: Tensor, lmbda: Tensor, second: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """`second_vote` for one token a row, when only that token's probabilities are at hand.

    Args:
        log_p_knn: By the first vote, [rows].
        lmbda: λ, [rows], 0 where there is no such vote.
        second: log p by the second vote, [rows].
        shares: s, [rows], 0 where there is none.

    Returns:
        log p of both votes together, [rows], and their weight in the mixture, [rows].
    """
    first = (1.0 - shares) * lmbda
    total = first + shares
    parts = [
        part + (share / total).log().nan_to_num(nan=_NOTHING, neginf=_NOTHING)
        for part, share in ((log_p_knn, first), (second, shares))
    ]
    return torch.logaddexp(*parts), total


def _votes(weights: Tensor) -> Tensor:
    """bool [rows], whether anything has a weight."""
    return (weights > _NOTHING).any(dim=-1)


def drop_impossible(weights: Tensor, values: Tensor, log_p_lm: Tensor) -> Tensor:
    """Removes the votes for tokens that the model is forbidden to choose.

    A constraint (`bad_words_ids`, `min_length`, a grammar) masks a token's score before other
    processors run, and a neighbor must not bring the token back. The mask may be -inf, the least
    number of the scores' type (`remove_invalid_values` turns -inf into it), or a number such as
    -1e4. So a token counts as forbidden when its log-probability is below -745, where its
    probability is 0 in float64. A penalty that leaves a probability is not a mask. It lowers the
    model's share only.

    Args:
        weights: log w_i, [rows, k].
        values: Tokens of the neighbors, int64 [rows, k].
        log_p_lm: The model's log-probabilities, [rows, vocabulary].

    Returns:
        log w_i of the remaining neighbors, [rows, k], summing to 1 again in each row.
    """
    if weights.shape[-1] == 0:
        return weights
    model_side = log_p_lm.gather(-1, values)
    if float(model_side.amin()) >= _FORBIDDEN:
        return weights
    return normalised(weights.masked_fill(model_side < _FORBIDDEN, _NOTHING))


def mix(
    log_p_lm: Tensor,
    weights: Tensor,
    values: Tensor,
    lmbda: float | Tensor,
    *,
    every_row: bool = False,
) -> Tensor:
    """Computes log(lmbda * p_kNN + (1 - lmbda) * p_LM). Khandelwal et al. (2020), equation 3.

    It takes one pass over the vocabulary. All other steps cost rows * k, whatever the vocabulary.

    Args:
        log_p_lm: The model's normalised log-probabilities, [rows, vocabulary].
        weights: log w_i of the neighbors, [rows, k], -inf for no vote.
        values: Tokens of the neighbors, int64 [rows, k], below the vocabulary's size.
        lmbda: The weight of p_kNN in [0, 1]: one number, or a tensor [rows].

    Returns:
        [rows, vocabulary]. A row without any vote is exactly `log_p_lm`.
    """
    if weights.shape[-1] == 0:
        return log_p_lm
    log_share: float | Tensor
    log_rest: float | Tensor
    if isinstance(lmbda, Tensor):
        share = lmbda.unsqueeze(-1)
        log_share, log_rest = share.log(), torch.log1p(-share)
    else:
        log_share = math.log(lmbda) if lmbda > 0.0 else _NOTHING
        log_rest = math.log1p(-lmbda) if lmbda < 1.0 else _NOTHING
    if not every_row:
        none = weights.amax(dim=-1, keepdim=True) == _NOTHING
        zero = torch.zeros_like(none, dtype=weights.dtype)
        log_share = (zero + log_share).masked_fill(none, _NOTHING)
        log_rest = (zero + log_rest).masked_fill(none, 0.0)
    mixed = log_p_lm + log_rest
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
    """Computes log p_kNN of one token in each row, or of several.

    Args:
        weights: log w_i, [rows, k].
        values: Tokens of the neighbors, int64 [rows, k].
        chosen: int64 [rows] or [rows, tokens].
    """
    if chosen.dim() > 1:
        weights, values = weights.unsqueeze(1), values.unsqueeze(1)
    if weights.shape[-1] == 0:
        return torch.full(chosen.shape, _NOTHING, dtype=weights.dtype, device=weights.device)
    return torch.logsumexp(weights.masked_fill(values != chosen.unsqueeze(-1), _NOTHING), dim=-1)


def mix_row(log_p_lm: Tensor, log_p_knn: Tensor, lmbda: Tensor) -> Tensor:
    """Computes the mixture for one token in each row, from that token's probabilities alone.

    Args:
        log_p_lm: [rows].
        log_p_knn: [rows].
        lmbda: [rows], 0 where no neighbor was found.

    Returns:
        log p, [rows].
    """
    return torch.logaddexp(log_p_lm + torch.log1p(-lmbda), log_p_knn + lmbda.log())


def influences(
    weights: Tensor, values: Tensor, chosen: Tensor, log_p: Tensor, lmbda: Tensor
) -> Tensor:
    """Computes each neighbor's influence, its part in the chosen token's probability.

    The influence is lmbda * w_i * [v_i = y] / p(y). The influences of all neighbors and the
    model's own share, (1 - lmbda) * p_LM(y) / p(y), sum to 1.

    Args:
        weights: log w_i, [rows, k].
        values: Tokens of the neighbors, int64 [rows, k].
        chosen: The token y, int64 [rows].
        log_p: log p(y) of the mixture, [rows].
        lmbda: [rows].

    Returns:
        [rows, k], in [0, 1].
    """
    share = (weights + (lmbda.log() - log_p).unsqueeze(-1)).exp()
    # A processor behind this one may choose a token that the mixture gives no probability.
    return share.masked_fill((values != chosen.unsqueeze(-1)) | share.isnan(), 0.0)
