"""Fits gates to held-out text. It takes arrays and returns a gate.

Each array has one row for each token of the text. The rows hold the distance of the nearest
neighbor or more features, and the probabilities that the model and the neighbors gave the token.
The text must not be in the datastore, or every token would find itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.distance import DistanceGate
from knn_logits.mixture.gates.gate import Gate
from knn_logits.mixture.gates.learned import FEATURES, LearnedGate
from knn_logits.mixture.gates.meta_k import MetaKGate
from knn_logits.mixture.gates.network import trained
from knn_logits.mixture.gates.skipping import SKIP_FEATURES, ConfidenceSkip, LearnedSkip

# A bin has at least so many tokens.
_TOKENS_A_BIN = 25
_ROUNDS = 1000
_CLOSE = 1e-6


def fit_distance_gate(
    nearest: Array,
    log_p_lm: Array,
    log_p_knn: Array,
    metric: Metric,
    *,
    bins: int = 32,
    smoothing: float = 10.0,
) -> DistanceGate:
    """Fits the `DistanceGate` that makes a text likeliest.

    All bins hold the same number of tokens. The coefficients are found by expectation maximisation.
    λ at a distance is a weighted mean of the coefficients at the two nearest middles. So the
    mixture has one component for each pair of a middle and the model or the neighbors, and every
    round has a closed form. The likelihood is concave in the coefficients, so it has one maximum.
    (Drozdov et al., 2022, tune the coefficient of each bin separately.)

    Args:
        nearest: [n], the nearest neighbor's distance, or its similarity for "ip" and "cosine". A
            token without neighbors has a number that is not finite. It is left out, since no gate
            changes it.
        log_p_lm: [n], log p_LM of the text's tokens.
        log_p_knn: [n], log p_kNN of the text's tokens, -inf where no neighbor voted for the token.
        metric: The metric of the distances.
        bins: The most bins. There are fewer if there are few tokens.
        smoothing: How strongly each coefficient is pulled towards the best λ of the whole text,
            above 0. The pull counts like so many tokens, so a bin with little data stays near it.

    Returns:
        The gate.

    Raises:
        ConfigError: when the arrays do not fit together or no token is left.
    """
    if isinstance(bins, bool) or bins < 1 or not smoothing > 0.0:
        raise ConfigError("bins must be at least 1 and smoothing above 0")
    (nearest,), lm, knn = _usable([nearest], log_p_lm, log_p_knn)
    number = max(1, min(bins, len(nearest) // _TOKENS_A_BIN))
    # The gate stores float32. Middles that become equal in float32 are merged.
    places = np.quantile(nearest, (np.arange(number) + 0.5) / number).astype(np.float32)
    middles = np.unique(places).astype(np.float64)
    peak = np.maximum(lm, knn)
    lm, knn = np.exp(lm - peak), np.exp(knn - peak)
    nothing = np.zeros(len(nearest))
    overall = _coefficients(nothing.astype(np.int64), nothing, lm, knn, 1, 0.5, 1.0)
    above = np.clip(np.searchsorted(middles, nearest), 1, max(1, len(middles) - 1))
    if len(middles) > 1:
        gap = middles[above] - middles[above - 1]
        part = np.clip((nearest - middles[above - 1]) / gap, 0.0, 1.0)
        lmbdas = _coefficients(above - 1, part, lm, knn, len(middles), float(overall[0]), smoothing)
    else:
        lmbdas = overall
    return DistanceGate(metric, middles, np.clip(lmbdas, 0.0, 1.0))


def _coefficients(
    left: Array, part: Array, lm: Array, knn: Array, number: int, centre: float, smoothing: float
) -> Array:
    """Computes λ at each middle by expectation maximisation.

    Args:
        left: int64 [n], the middle to the left of each token.
        part: [n], how far the token lies towards the next middle, in [0, 1].
        lm: [n], p_LM, up to a factor that it shares with p_kNN.
        knn: [n], p_kNN, up to the same factor.
    """
    right = np.minimum(left + 1, number - 1)
    lmbdas = np.full(number, centre)
    places = np.concatenate([left, right])
    for _ in range(_ROUNDS):
        mixed = (1.0 - part) * lmbdas[left] + part * lmbdas[right]
        p = mixed * knn + (1.0 - mixed) * lm
        # The responsibility of each token's two middles: of the neighbors' part, and in total.
        by_knn = np.concatenate([(1.0 - part) * lmbdas[left], part * lmbdas[right]])
        by_knn *= np.tile(knn / p, 2)
        by_lm = np.concatenate([(1.0 - part) * (1.0 - lmbdas[left]), part * (1.0 - lmbdas[right])])
        by_lm *= np.tile(lm / p, 2)
        voted = np.bincount(places, by_knn, number) + smoothing * centre
        whole = np.bincount(places, by_knn + by_lm, number) + smoothing
        before, lmbdas = lmbdas, voted / whole
        if np.abs(lmbdas - before).max() < _CLOSE:
            break
    return lmbdas


def fit_learned_gate(
    features: Array,
    log_p_lm: Array,
    log_p_knn: Array,
    metric: Metric,
    *,
    units: int = 32,
    steps: int = 1500,
    decay: float = 1e-3,
    seed: int = 0,
) -> LearnedGate:
    """Trains a `LearnedGate` that makes a text likely.

    It minimises the mean of -log(λ p_kNN + (1 - λ) p_LM) with AdamW on batches of 4,096 tokens. He
    et al. (2021), section 4.1, do the same with a penalty on λ that saves searches. The training
    takes seconds on one core. The same seed and number of threads give the same gate.

    Args:
        features: [n, features], the result of `gate_features`, one row for each token.
        log_p_lm: [n], log p_LM of the text's tokens.
        log_p_knn: [n], log p_kNN of the text's tokens, -inf where no neighbor voted for the token.
        metric: The metric of the distances.
        units: Number of hidden units.
        steps: Number of training steps.
        decay: Weight decay.
        seed: Seed of the first weights and of the batches.

    Returns:
        The gate.

    Raises:
        ConfigError: when the arrays do not fit together or no token is left.
    """
    if np.ndim(features) != 2 or np.shape(features)[1] != len(FEATURES):
        raise ConfigError(f"features must have the shape [tokens, {len(FEATURES)}]")
    columns, lm, knn = _usable(list(np.asarray(features).T), log_p_lm, log_p_knn)
    # A float cannot tell a difference of 60 from a larger one, but 60 still has a gradient.
    by_lm = torch.from_numpy(np.maximum(lm, knn - 60.0)).float()
    by_knn = torch.from_numpy(np.maximum(knn, lm - 60.0)).float()

    def loss(logit: Tensor, batch: Tensor) -> Tensor:
        mixed = torch.logaddexp(
            by_lm[batch] + functional.logsigmoid(-logit),
            by_knn[batch] + functional.logsigmoid(logit),
        )
        return -mixed.mean()

    read = np.stack(columns, -1)
    arrays = trained(read, loss, units=units, steps=steps, decay=decay, seed=seed)
    return LearnedGate(metric, arrays)


def fit_meta_k_gate(
    features: Array,
    ks: Sequence[int],
    log_p_lm: Array,
    log_p_knn: Array,
    metric: Metric,
    *,
    units: int = 32,
    steps: int = 300,
    decay: float = 0.3,
    seed: int = 0,
) -> MetaKGate:
    """Trains a `MetaKGate` that makes a text likely.

    It minimises the mean of -log(a_0 p_LM + sum over j of a_j p_kNN of the nearest k_j), as Zheng
    et al. (2021), section 3, do. It trains like `fit_learned_gate`. But the gate has many more
    weights, and longer training would make it memorise ten thousand tokens.

    Args:
        features: [n, 6 + 2 ks], the result of `meta_k_features`, one row for each token.
        log_p_lm: [n], log p_LM of the text's tokens.
        log_p_knn: [n, ks], log p_kNN of the text's tokens by the nearest k neighbors, for each k.
            It is -inf where none of these neighbors voted for the token.
    """
    inputs, number = len(FEATURES) + 2 * len(ks), len(ks)
    if np.ndim(features) != 2 or np.shape(features)[1] != inputs:
        raise ConfigError(f"features must have the shape [tokens, {inputs}]")
    if np.ndim(log_p_knn) != 2 or np.shape(log_p_knn)[1] != number:
        raise ConfigError(f"log_p_knn must have the shape [tokens, {number}]")
    sides = np.column_stack([log_p_lm, log_p_knn]).astype(np.float64)
    # `_usable` drops tokens that nothing gives a probability. It compares two columns, so the best
    # of the neighbors' columns stands for them all.
    places = np.arange(len(sides), dtype=np.float64)
    columns, _, _ = _usable([*np.asarray(features).T, places], sides[:, 0], sides[:, 1:].max(-1))
    *read, usable = columns
    sides = sides[usable.astype(np.int64)]
    log_p = torch.from_numpy(np.maximum(sides, sides.max(-1, keepdims=True) - 60.0)).float()

    def loss(logits: Tensor, batch: Tensor) -> Tensor:
        return -torch.logsumexp(torch.log_softmax(logits, -1) + log_p[batch], -1).mean()

    arrays = trained(
        np.stack(read, -1),
        loss,
        units=units,
        steps=steps,
        decay=decay,
        seed=seed,
        outputs=1 + number,
    )
    return MetaKGate(metric, ks, arrays)


def best_lmbda(log_p_lm: Array, log_p_knn: Array) -> float:
    """Finds the λ in [0, 1] that makes a text likeliest, by expectation maximisation.

    Args:
        log_p_lm: [n], log p_LM of the text's tokens.
        log_p_knn: [n], log p_kNN of the text's tokens, -inf where no neighbor voted for the token.
    """
    _, lm, knn = _usable([np.zeros(len(log_p_lm))], log_p_lm, log_p_knn)
    peak = np.maximum(lm, knn)
    nothing = np.zeros(len(lm))
    coefficients = _coefficients(
        nothing.astype(np.int64), nothing, np.exp(lm - peak), np.exp(knn - peak), 1, 0.5, 1.0
    )
    return float(np.clip(coefficients[0], 0.0, 1.0))


def fit_confidence_skip(log_p_max: Array, share: float, lmbda: float | Gate) -> ConfidenceSkip:
    """Fits a gate that skips the tokens that the model is most certain of.

    Args:
        log_p_max: [n], log p_LM of the likeliest token at each position of a text.
        share: Share of the text's tokens that are to be skipped, in [0, 1].
    """
    check_share(share)
    limit = np.exp(np.quantile(np.asarray(log_p_max, np.float64), 1.0 - share))
    return ConfidenceSkip(lmbda, float(np.clip(limit, 0.0, 1.0)))


def fit_learned_skip(
    features: Array,
    gains: Array,
    share: float,
    lmbda: float | Gate,
    *,
    units: int = 32,
    steps: int = 1500,
    decay: float = 1e-3,
    seed: int = 0,
) -> LearnedSkip:
    """Trains a gate that skips the tokens where the neighbors are expected to gain least.

    A network is trained to predict the gain of the mixture over the model. Skipping the tokens with
    the lowest expected gain costs least.

    Args:
        features: [n, features], the result of `skip_features`, one row for each token.
        gains: [n], log p - log p_LM of the text's tokens, in nats.
        share: Share of the text's tokens that are to be skipped, in [0, 1].
    """
    check_share(share)
    features, gains = np.asarray(features, np.float32), np.asarray(gains, np.float64)
    if features.ndim != 2 or features.shape[1] != len(SKIP_FEATURES) or not len(features):
        raise ConfigError(f"features must have the shape [tokens, {len(SKIP_FEATURES)}]")
    if gains.shape != (len(features),) or not np.isfinite(gains).all():
        raise ConfigError("gains must be a finite number for each token")
    targets = torch.from_numpy(gains).float()

    def loss(logits: Tensor, batch: Tensor) -> Tensor:
        return (logits - targets[batch]).square().mean()

    arrays = trained(features, loss, units=units, steps=steps, decay=decay, seed=seed)
    expected = LearnedSkip(0.0, 0.0, arrays).expected(torch.from_numpy(features))
    # The quantile is not interpolated: the threshold is the number of a token, which is skipped.
    order = np.sort(expected.numpy())
    place = int(np.ceil(share * len(order))) - 1
    lowest = float(order[0])
    threshold = float(order[place]) if place >= 0 else lowest - 1e-3 * max(1.0, abs(lowest))
    return LearnedSkip(lmbda, threshold, arrays)


def check_share(share: float) -> None:
    """Refuses a share that is not in [0, 1]."""
    if isinstance(share, bool) or not 0.0 <= share <= 1.0:
        raise ConfigError(f"the share of tokens to skip must lie between 0 and 1, not {share!r}")


def _usable(
    features: list[Array], log_p_lm: Array, log_p_knn: Array
) -> tuple[list[Array], Array, Array]:
    """Selects the tokens that a gate can change, and converts the arrays to float64.

    Args:
        features: The features, each [n]. The first is the nearest neighbor's distance.
        log_p_lm: [n], log p_LM of the text's tokens.
        log_p_knn: [n], log p_kNN of the text's tokens.
    """
    columns = [np.asarray(column, dtype=np.float64) for column in (*features, log_p_lm, log_p_knn)]
    if any(column.ndim != 1 or len(column) != len(columns[0]) for column in columns):
        raise ConfigError("the arrays that a gate is fitted to need one number for each token")
    if any(np.isnan(column).any() for column in columns):
        raise ConfigError("the arrays that a gate is fitted to hold NaN: compute them again")
    usable = np.isfinite(columns[0]) & (np.maximum(columns[-2], columns[-1]) > -np.inf)
    if not usable.any():
        raise ConfigError("no token has a neighbor: fit the gate on text like the datastore's")
    *read, lm, knn = (column[usable] for column in columns)
    return read, lm, knn
