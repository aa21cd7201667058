"""Fits gates to held-out text: arrays in, a gate out.

Each array has a row for each token of the text: how far its nearest neighbor was (or more features
than that), and what the model and the neighbors each gave the token that came. The text must not be
the datastore's own, or every token would find itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from knn_logits.arrays import Array
from knn_logits.config import Metric
from knn_logits.errors import ConfigError
from knn_logits.gating.distance import DistanceGate
from knn_logits.gating.gate import Gate
from knn_logits.gating.learned import FEATURES, LearnedGate
from knn_logits.gating.meta_k import MetaKGate
from knn_logits.gating.network import trained
from knn_logits.gating.skipping import SKIP_FEATURES, ConfidenceSkip, LearnedSkip

# Fewer tokens than this do not get a bin of their own.
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
        number: Number of middles.
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
        steps: Number of training steps.
        decay: Weight decay.
        seed: Seed of the first weights and of the batches.

    Raises:
        ConfigError: when the arrays do not fit together or no token is left.
    """
    if np.ndim(features) != 2 or np.shape(features)[1] != len(FEATURES):
        raise ConfigError(f"features must have the shape [tokens, {len(FEATURES)}]")
    columns, lm, knn = _usable(list(np.asarray(features).T), log_p_lm, log_p_knn)
    # A difference of 60 is the same to a float as any larger one, and has a gradient.
    by_lm = torch.from_numpy(np.maximum(lm, knn - 60.0)).float()
    by_knn = torch.from_numpy(np.maximum(knn, lm - 60.0)).float()

    def loss(logit: Tensor, some: Tensor) -> Tensor:
        mixed = torch.logaddexp(
            by_lm[some] + functional.logsigmoid(-logit),
            by_knn[some] + functional.logsigmoid(logit),
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
    """A `MetaKGate` trained to make a text likely.

    Minimises the mean of -log(a_0 p_LM + sum over j of a_j p_kNN of the nearest k_j), as Zheng et
    al. (2021), section 3, do, in the way of `fit_learned_gate`; with its many more weights it
    learns ten thousand tokens by heart where training goes on for longer.

    Args:
        features: [n, 6 + 2 ks], from `meta_k_features`, a row for each token.
        ks: Ascending.
        log_p_lm: [n], log p_LM of the tokens that came.
        log_p_knn: [n, ks], log p_kNN of them by the nearest k for each k, -inf where none of
            those voted for one.
        metric: What the distances are.
        units: Hidden units.
        steps: Number of training steps.
        decay: Weight decay.
        seed: Seed of the first weights and of the batches.

    Raises:
        ConfigError: when the arrays do not fit together or no token is left.
    """
    inputs, number = len(FEATURES) + 2 * len(ks), len(ks)
    if np.ndim(features) != 2 or np.shape(features)[1] != inputs:
        raise ConfigError(f"features must have the shape [tokens, {inputs}]")
    if np.ndim(log_p_knn) != 2 or np.shape(log_p_knn)[1] != number:
        raise ConfigError(f"log_p_knn must have the shape [tokens, {number}]")
    sides = np.column_stack([log_p_lm, log_p_knn]).astype(np.float64)
    # Those that any side can do something about, by the rule for two.
    places = np.arange(len(sides), dtype=np.float64)
    columns, _, _ = _usable([*np.asarray(features).T, places], sides[:, 0], sides[:, 1:].max(-1))
    *read, kept = columns
    sides = sides[kept.astype(np.int64)]
    log_p = torch.from_numpy(np.maximum(sides, sides.max(-1, keepdims=True) - 60.0)).float()

    def loss(said: Tensor, some: Tensor) -> Tensor:
        return -torch.logsumexp(torch.log_softmax(said, -1) + log_p[some], -1).mean()

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
    """The number in [0, 1] under which a text is likeliest, by the same rounds.

    Args:
        log_p_lm: [n], log p_LM of the tokens that came.
        log_p_knn: [n], log p_kNN of them, -inf where no neighbor voted for one.

    Raises:
        ConfigError: when the arrays do not fit together or no token is left.
    """
    _, lm, knn = _usable([np.zeros(len(log_p_lm))], log_p_lm, log_p_knn)
    peak = np.maximum(lm, knn)
    nothing = np.zeros(len(lm))
    found = _coefficients(
        nothing.astype(np.int64), nothing, np.exp(lm - peak), np.exp(knn - peak), 1, 0.5, 1.0
    )
    return float(np.clip(found[0], 0.0, 1.0))


def fit_confidence_skip(log_p_max: Array, share: float, lmbda: float | Gate) -> ConfidenceSkip:
    """A gate that skips the tokens of which the model is surest.

    Args:
        log_p_max: [n], log p_LM of the likeliest token at each place of a text.
        share: Share of the text's tokens that are to be skipped, in [0, 1].
        lmbda: Where it searches.

    Raises:
        ConfigError: when a value is out of its range.
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
    """A gate that skips the tokens at which the neighbors are expected to win least.

    A network is trained to predict what the mixture wins over the model. Leaving out the places
    with the lowest expectation costs least of all ways to leave out so many.

    Args:
        features: [n, features], from `skip_features`, a row for each token.
        gains: [n], log p - log p_LM of the tokens that came, in nats.
        share: Share of the text's tokens that are to be skipped, in [0, 1].
        lmbda: Where it searches.
        units: Hidden units.
        steps: Number of training steps.
        decay: Weight decay.
        seed: Seed of the first weights and of the batches.

    Raises:
        ConfigError: when the arrays do not fit together or a value is out of its range.
    """
    check_share(share)
    features, gains = np.asarray(features, np.float32), np.asarray(gains, np.float64)
    if features.ndim != 2 or features.shape[1] != len(SKIP_FEATURES) or not len(features):
        raise ConfigError(f"features must have the shape [tokens, {len(SKIP_FEATURES)}]")
    if gains.shape != (len(features),) or not np.isfinite(gains).all():
        raise ConfigError("gains must be a finite number for each token")
    wanted = torch.from_numpy(gains).float()

    def loss(said: Tensor, some: Tensor) -> Tensor:
        return (said - wanted[some]).square().mean()

    arrays = trained(features, loss, units=units, steps=steps, decay=decay, seed=seed)
    expected = LearnedSkip(0.0, 0.0, arrays).expected(torch.from_numpy(features))
    # Without interpolation: the threshold is what some token has, and that one is skipped.
    order = np.sort(expected.numpy())
    place = int(np.ceil(share * len(order))) - 1
    lowest = float(order[0])
    threshold = float(order[place]) if place >= 0 else lowest - 1e-3 * max(1.0, abs(lowest))
    return LearnedSkip(lmbda, threshold, arrays)


def check_share(share: float) -> None:
    """Refuses a share that is none.

    Raises:
        ConfigError: when it is not a number in [0, 1].
    """
    if isinstance(share, bool) or not 0.0 <= share <= 1.0:
        raise ConfigError(f"the share of tokens to skip must lie between 0 and 1, not {share!r}")


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
