"""The result of an evaluation: perplexities from sums of log p, and the bootstrap."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from knn_logits.arrays import Floats, Ints

_LARGEST_EXPONENT = 700.0
# With fewer documents, blocks of tokens are drawn.
_FEW_DOCUMENTS = 10
_BLOCK_TOKENS = 64
_SAMPLES = 1000
# The most units that the bootstrap draws at once, which take 32 MB for each column.
_DRAWN_AT_ONCE = 4 << 20


@dataclass(frozen=True)
class Perplexities:
    """The perplexity of a text: the exponential of the mean negative log-likelihood of a token."""

    lm: float | None  # of the model alone
    # of the neighbors alone; None where it is infinite, as it is if a single token has no vote
    knn: float | None
    interpolated: float | None  # of the mixture


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        documents: Number of documents.
        tokens: Number of scored tokens, which are all but the first of each context.
        perplexity: The perplexities.
        interval: 95% interval of the mixture's perplexity divided by the model's, from a bootstrap
            over documents. None with fewer than two documents, and where a perplexity is infinite.
        settings: The conditions of the numbers: model, datastore, k, lmbda, temperature, windows.
        searches: Number of queries that the index was searched for.
        searches_saved: Number of queries that were answered without a search.
        seconds: Seconds that the pass over the text took, without loading.
        overlap: The share of the text's tokens that the datastores hold; None if it was not
            checked.
        against: The comparison with the run of `against`: `ratio` is this run's perplexity divided
            by the other's, `interval` its 95% interval; None without another run.
    """

    documents: int
    tokens: int
    perplexity: Perplexities
    interval: tuple[float, float] | None
    settings: dict[str, Any]
    searches: int
    searches_saved: int
    seconds: float
    overlap: float | None = None
    against: dict[str, Any] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Number of tokens scored in a second."""
        return self.tokens / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, for JSON."""
        rounded = {
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
        }
        return asdict(self) | rounded


class Tally:
    """Sums log p by document, [documents, 4]: of model, neighbors and mixture, and the tokens."""

    def __init__(self) -> None:
        self._sums: Floats = np.zeros((0, 4))

    def add(self, documents: Ints, lm: Floats, knn: Floats, mixed: Floats) -> None:
        """Adds tokens with their documents, int64, and log p, float64, -inf without a vote."""
        if not len(documents):
            return
        size = max(len(self._sums), int(documents.max()) + 1)
        added = [np.bincount(documents, one, size) for one in (lm, knn, mixed)]
        sums = np.stack([*added, np.bincount(documents, minlength=size)], axis=-1)
        sums[: len(self._sums)] += self._sums
        self._sums = sums

    @property
    def tokens(self) -> int:
        """Number of tokens that were added."""
        return int(self._sums[:, 3].sum())

    def perplexities(self, *, with_knn: bool) -> Perplexities:
        """The perplexities of all tokens; without neighbors, those of the model alone."""
        lm, knn, mixed = (perplexity(-nats, self.tokens) for nats in self._sums[:, :3].sum(axis=0))
        return Perplexities(lm, knn, mixed) if with_knn else Perplexities(lm, None, None)

    def interval(self) -> tuple[float, float] | None:
        """95% interval of the mixture's perplexity divided by the model's."""
        lm, _, mixed, tokens = self._sums[self._sums[:, 3] > 0].T
        if not (np.isfinite(lm).all() and np.isfinite(mixed).all()):
            return None
        return ratio_interval(np.stack([lm - mixed, tokens], axis=-1))


def perplexity(nats: float, count: float) -> float | None:
    """Computes exp(nats / count); None if it is infinite or the count is 0."""
    if count <= 0 or not nats / count < _LARGEST_EXPONENT:
        return None
    return math.exp(nats / count)


def compared(gains: Floats, documents: Ints) -> dict[str, Any]:
    """Compares two runs by each token's gain in log p, float64, and document, int64 [tokens].

    Returns:
        `ratio`, the perplexity divided by the other's, its 95% `interval` (None with fewer than
        two units), the `units` that were drawn, their `count`, and the number of `tokens`.
    """
    numbers, units = np.unique(documents, return_inverse=True)
    whole = len(numbers) >= _FEW_DOCUMENTS
    if not whole:
        order = np.argsort(units, kind="stable")
        counts = np.bincount(units)
        inside = np.arange(len(units)) - np.repeat(np.cumsum(counts) - counts, counts)
        blocks = units[order] * (len(units) + 1) + inside // _BLOCK_TOKENS
        gains, units = gains[order], np.unique(blocks, return_inverse=True)[1]
    gains, tokens = np.bincount(units, gains).astype(np.float64), np.bincount(units)
    return {
        "ratio": math.exp(-float(gains.sum()) / max(1, int(tokens.sum()))),
        "interval": ratio_interval(np.stack([-gains, tokens], axis=-1)),
        "units": "documents" if whole else "blocks of tokens",
        "count": len(gains),
        "tokens": int(tokens.sum()),
    }


def ratio_interval(units: Floats) -> tuple[float, float] | None:
    """95% interval of exp(sum of the first column / sum of the second) of units, [units, 2]."""
    if len(units) < 2:
        return None
    random = np.random.default_rng(0)
    drawn = np.empty((_SAMPLES, 2))
    at_once = max(1, _DRAWN_AT_ONCE // len(units))
    for first in range(0, _SAMPLES, at_once):
        chosen = random.integers(0, len(units), (min(at_once, _SAMPLES - first), len(units)))
        drawn[first : first + at_once] = units[chosen].sum(axis=1)
    sums, sizes = drawn.T
    low, high = np.exp(np.quantile(sums / sizes, [0.025, 0.975]))
    return float(low), float(high)
