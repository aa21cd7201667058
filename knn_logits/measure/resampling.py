"""The bootstrap, which sums over units of a text drawn with replacement. It knows arrays only."""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Floats

# The most units drawn at once, which take 32 MB for each column.
_AT_ONCE = 4 << 20


def resampled(units: Floats, samples: int, seed: int) -> Floats:
    """Computes what the sums of columns would be if other units of the text had been drawn.

    Args:
        units: float64 [units, columns], what each unit adds to the sums.

    Returns:
        float64 [samples, columns], the sums of each resample.
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
