"""The bootstrap: sums over units of a text that are drawn with replacement. Arrays only."""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Floats

# Units drawn at once: 32 MB of numbers a column.
_AT_ONCE = 4 << 20


def resampled(units: Floats, samples: int, seed: int) -> Floats:
    """What the sums of some columns would be, had other units of the same text been drawn.

    Args:
        units: float64 [units, columns], what each unit adds to the sums.
        samples: Resamples.
        seed: Seed of the draws.

    Returns:
        float64 [samples, columns].
    """
    random = np.random.default_rng(seed)
    drawn = np.empty((samples, units.shape[1]))
    at_once = max(1, _AT_ONCE // len(units))
    for first in range(0, samples, at_once):
        rows = min(at_once, samples - first)
        drawn[first : first + rows] = units[random.integers(0, len(units), (rows, len(units)))].sum(
            axis=1
        )
    return drawn
