"""Fits gates to held-out text: arrays in, a gate out.

Each array has a row for each token of the text: how far its nearest neighbor was (or more features
than that), and what the model and the neighbors each gave the token that came. The text must not be
the datastore's own, or every token would find itself.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from knn_logits.config import Metric
from knn_logits.errors import ConfigError
from knn_logits.gating.distance import DistanceGate
from knn_logits.gating.learned import FEATURES, LearnedGate
from knn_logits.neighbors import Array

# Fewer tokens than this do not get a bin of their own.
_TOKENS_A_BIN = 25
_ROUNDS = 1000
_CLOSE = 1e-6
_BATCH = 4096
_RATE = 0.02


def fit_distance_gate(
    nearest: Array,
    log_p_lm: Array,
    log_p_knn: Array,
    metric: Metric,
    *,
    bins: int = 32,
    smoothing: float = 10.0,
) -> DistanceGate:
    """The `DistanceGate` under which a text is likeliest.

    The bins hold equally many tokens. Their coefficients come from expectation and maximisation:
    λ at a distance is a weighted mean of the two nearest middles' coefficients, so that the
    mixture is one over pairs (middle, model or neighbors), and every round has a closed form. The
    likelihood is concave in the coefficients: there is one maximum. (Drozdov et al., 2022, tune a
    coefficient for each bin by itself.)

    Args:
        nearest: [n], the nearest neighbor's distance (similarity for "ip" and "cosine"), not
            finite where there was none; such tokens are left out, as no gate changes them.
        log_p_lm: [n], log p_LM of the tokens that came.
        log_p_knn: [n], log p_kNN of them, -inf where no neighbor voted for one.
        metric: What the distances are.
        bins: At most so many; few tokens get fewer.
        smoothing: Tokens' worth of pull of each coefficient towards the λ that is best for the
            whole text, above 0: a bin with little data stays near it.

    Raises:
        ConfigError: when the arrays do not fit together or no token is left.
    """
    if isinstance(bins, bool) or bins < 1 or not smoothing > 0.0:
        raise ConfigError("bins must be at least 1 and smoothing above 0")
    (nearest,), lm, knn = _usable([nearest], log_p_lm, log_p_knn)
    number = max(1, min(bins, len(nearest) // _TOKENS_A_BIN))
    # float32, as the gate has them: two middles that become equal there are one.
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
    """λ at each middle, by expectation and maximisation.

    Args:
        left: int64 [n], the middle left of each token.
        part: [n], how far it lies towards the next middle, in [0, 1].
        lm: [n], p_LM up to a factor that p_kNN has as well.
        knn: [n], p_kNN.
        number: Of middles.
        centre: What each coefficient is pulled to.
        smoothing: By how many tokens.
    """
    right = np.minimum(left + 1, number - 1)
    lmbdas = np.full(number, centre)
    places = np.concatenate([left, right])
    for _ in range(_ROUNDS):
        mixed = (1.0 - part) * lmbdas[left] + part * lmbdas[right]
        p = mixed * knn + (1.0 - mixed) * lm
        # For each token: how much each of its two middles spoke, by the neighbors and in all.
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
    """A `LearnedGate` trained to make a text likely.

    Minimises the mean of -log(λ p_kNN + (1 - λ) p_LM), as He et al. (2021), section 4.1, do
    (without their penalty on λ, which is there to save searches), with AdamW on batches of 4,096
    tokens. Takes seconds on one core; the same seed and thread number give the same gate.

    Args:
        features: [n, features], from `gate_features`, a row for each token.
        log_p_lm: [n], log p_LM of the tokens that came.
        log_p_knn: [n], log p_kNN of them, -inf where no neighbor voted for one.
        metric: What the distances are.
        units: Hidden units.
        steps: Of training.
        decay: Weight decay.
        seed: Of the first weights and of the batches.

    Raises:
        ConfigError: when the arrays do not fit together or no token is left.
    """
    if np.ndim(features) != 2 or np.shape(features)[1] != len(FEATURES):
        raise ConfigError(f"features must have the shape [tokens, {len(FEATURES)}]")
    columns, lm, knn = _usable(list(np.asarray(features).T), log_p_lm, log_p_knn)
    read = torch.from_numpy(np.stack(columns, -1)).float()
    mean, scale = read.mean(0), read.std(0, correction=0)
    scale = torch.where(scale > 1e-6, scale, torch.ones_like(scale))
    read = (read - mean) / scale
    # A difference of 60 is the same to a float as any larger one, and has a gradient.
    by_lm = torch.from_numpy(np.maximum(lm, knn - 60.0)).float()
    by_knn = torch.from_numpy(np.maximum(knn, lm - 60.0)).float()
    random = torch.Generator().manual_seed(seed)
    weights = [
        torch.randn(units, len(FEATURES), generator=random) / len(FEATURES) ** 0.5,
        torch.zeros(units),
        torch.randn(units, generator=random) / units**0.5,
        torch.zeros(1),
    ]
    for one in weights:
        one.requires_grad_()
    hidden, hidden_bias, out, out_bias = weights
    optimizer = torch.optim.AdamW(weights, lr=_RATE, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for _ in range(steps):
            some = torch.randint(len(read), (min(len(read), _BATCH),), generator=random)
            logit = torch.tanh(read[some] @ hidden.T + hidden_bias) @ out + out_bias
            mixed = torch.logaddexp(
                by_lm[some] + functional.logsigmoid(-logit),
                by_knn[some] + functional.logsigmoid(logit),
            )
            optimizer.zero_grad()
            (-mixed.mean()).backward()
            optimizer.step()
            schedule.step()
    names = ("hidden", "hidden_bias", "out", "out_bias")
    trained = {name: one.detach() for name, one in zip(names, weights, strict=True)}
    return LearnedGate(metric, {"mean": mean, "scale": scale, **trained})


def _usable(
    features: list[Array], log_p_lm: Array, log_p_knn: Array
) -> tuple[list[Array], Array, Array]:
    """The tokens that a gate can do something about, in float64.

    Args:
        features: Each [n]; the first is the nearest neighbor's distance.
        log_p_lm: [n].
        log_p_knn: [n].
    """
    columns = [np.asarray(one, dtype=np.float64) for one in (*features, log_p_lm, log_p_knn)]
    if any(one.ndim != 1 or len(one) != len(columns[0]) for one in columns):
        raise ConfigError("a gate is fitted to arrays of one length, a number for each token")
    if any(np.isnan(one).any() for one in columns):
        raise ConfigError("the arrays that a gate is fitted to hold NaN: compute them again")
    kept = np.isfinite(columns[0]) & (np.maximum(columns[-2], columns[-1]) > -np.inf)
    if not kept.any():
        raise ConfigError("no token has a neighbor: fit the gate on text of the datastore's kind")
    *read, lm, knn = (one[kept] for one in columns)
    return read, lm, knn
