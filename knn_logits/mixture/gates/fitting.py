"""What the fits of gates share. The text must not be in the datastore."""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError

_ROUNDS = 1000
_CLOSE = 1e-6


def coefficients(
    left: Array, part: Array, lm: Array, knn: Array, number: int, centre: float, smoothing: float
) -> Array:
    """λ at each middle by EM; a token lies `part` of the way from its left middle to the next."""
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


def best_lmbda(log_p_lm: Array, log_p_knn: Array) -> float:
    """The λ that makes a text likeliest, by EM; `log_p_knn` is -inf where no neighbor votes."""
    _, lm, knn = usable_tokens([np.zeros(len(log_p_lm))], log_p_lm, log_p_knn)
    peak = np.maximum(lm, knn)
    nothing = np.zeros(len(lm))
    shares = coefficients(
        nothing.astype(np.int64), nothing, np.exp(lm - peak), np.exp(knn - peak), 1, 0.5, 1.0
    )
    return float(np.clip(shares[0], 0.0, 1.0))


def usable_tokens(
    features: list[Array], log_p_lm: Array, log_p_knn: Array
) -> tuple[list[Array], Array, Array]:
    """Drops tokens that no gate can change: no finite first feature, or no probability."""
    columns = [np.asarray(column, dtype=np.float64) for column in (*features, log_p_lm, log_p_knn)]
    if any(column.ndim != 1 or len(column) != len(columns[0]) for column in columns):
        raise ConfigError("the arrays to fit a gate on need one value per token")
    if any(np.isnan(column).any() for column in columns):
        raise ConfigError("the arrays to fit a gate on contain NaN: recompute them")
    usable = np.isfinite(columns[0]) & (np.maximum(columns[-2], columns[-1]) > -np.inf)
    if not usable.any():
        raise ConfigError(
            "no token has a neighbor: fit the gate on text similar to the datastore's"
        )
    *read, lm, knn = (column[usable] for column in columns)
    return read, lm, knn
