"""How many rows each token of a learned memory gets."""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Ints

# A token that is 16 times as frequent gets 8 times as many rows.
_POWER = 0.75


def allot(counts: Ints, rows: int) -> Ints:
    """Allots rows to tokens by their frequency.

    Each token gets at least one row and at most one for each of its occurrences. In between, its
    share grows with the power 3/4 of its frequency. Xu et al. (2023), section 4, increase the rows
    of frequent words.

    Args:
        counts: int64 [tokens], how often each token occurs, at least 1.
        rows: Rows for all tokens.

    Returns:
        int64 [tokens]. The sum is at most `rows`, unless there are more tokens than rows, and at
        most the sum of the counts.
    """
    weights = counts.astype(np.float64) ** _POWER

    def at(scale: float) -> Ints:
        found: Ints = np.minimum(counts, np.maximum(1, np.floor(scale * weights)).astype(np.int64))
        return found

    low, high = 0.0, float(counts.max(initial=1))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if int(at(middle).sum()) > rows else (middle, high)
    return at(low)
