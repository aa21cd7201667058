"""The results of an evaluation: sums of each document, and perplexities. It knows numbers only."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from knn_logits.arrays import Floats, Ints
from knn_logits.measure.overlap import Overlap

_LARGEST_EXPONENT = 700.0
# The most units that the bootstrap draws at once, which take 32 MB for each column.
_DRAWN_AT_ONCE = 4 << 20


@dataclass(frozen=True)
class Measures:
    """A measure; None if it is infinite."""

    lm: float | None  # the measure of the model alone
    # The measure of the neighbors alone. It is infinite if a single token has no vote.
    knn: float | None
    interpolated: float | None


@dataclass(frozen=True)
class TextResult:
    """The measures of one text, or of all texts together."""

    name: str
    documents: int  # number of its documents
    tokens: int  # number of scored tokens, which are all but the first of each context
    bytes: int  # number of bytes in UTF-8
    perplexity: Measures  # the exponential of the mean negative log-likelihood of a token
    # the mean negative log-likelihood of a byte, to the base 2. It does not depend on the tokenizer
    bits_per_byte: Measures
    # 95% intervals of "lm", "interpolated" and "ratio", from a bootstrap over documents. "ratio" is
    # the mixture's perplexity divided by the model's. None with fewer than two documents.
    interval: dict[str, tuple[float, float] | None] | None


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        texts: The result of each text.
        total: The result of all texts together.
        settings: The conditions of the numbers: model, datastore, k, lmbda, temperature, windows.
        searches: Number of queries that the index was searched for.
        searches_saved: Number of queries that were answered without a search.
        seconds: Seconds that the pass over the texts took, without loading.
        overlap: How much of the texts the datastores hold; None if it was not checked.
        against: The comparison with the run of `against`: `ratio` is this run's perplexity divided
            by the other's, `interval` its 95% interval; None without another run.
    """

    texts: list[TextResult]
    total: TextResult
    settings: dict[str, Any]
    searches: int
    searches_saved: int
    seconds: float
    overlap: Overlap | None = None
    against: dict[str, Any] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Number of tokens scored in a second."""
        return self.total.tokens / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields for JSON: the total's numbers at the top, and a list of texts."""
        total = asdict(self.total)
        del total["name"]
        return {
            **total,
            "searches": self.searches,
            "searches_saved": self.searches_saved,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
            "overlap": self.overlap.to_dict() if self.overlap is not None else None,
            "against": self.against,
            "settings": self.settings,
            "texts": [asdict(text) for text in self.texts],
        }


@dataclass(frozen=True)
class Resampling:
    """How intervals are made: whether there are neighbors, and the bootstrap over documents."""

    with_knn: bool
    samples: int
    seed: int


class Tally:
    """Sums log p by document, [documents, 4]: of model, neighbors and mixture, and the tokens."""

    def __init__(self) -> None:
        self._sums: Floats = np.zeros((0, 4))
        self.searches = 0

    def add(self, documents: Ints, lm: Floats, knn: Floats, mixed: Floats) -> None:
        """Adds tokens with their documents, int64, and log p, float64, -inf without a vote."""
        if not len(documents):
            return
        size = max(len(self._sums), int(documents.max()) + 1)
        added = [np.bincount(documents, one, size) for one in (lm, knn, mixed)]
        sums = np.stack([*added, np.bincount(documents, minlength=size)], axis=-1)
        sums[: len(self._sums)] += self._sums
        self._sums = sums

    def result(self, name: str, documents: int, bytes: int, how: Resampling) -> TextResult:
        """Computes the measures of all tokens that were added."""
        *logs, tokens = self._sums.sum(axis=0).tolist()
        nats = [-log for log in logs]
        if not how.with_knn:
            nats[1:] = [math.inf] * 2
        return TextResult(
            name=name,
            documents=documents,
            tokens=int(tokens),
            bytes=bytes,
            perplexity=Measures(*(perplexity(sum_of_nats, tokens) for sum_of_nats in nats)),
            bits_per_byte=Measures(*(_bits(sum_of_nats, bytes) for sum_of_nats in nats)),
            interval=self._intervals(how),
        )

    def _intervals(self, how: Resampling) -> dict[str, tuple[float, float] | None] | None:
        columns = self._sums[self._sums[:, 3] > 0]
        if len(columns) < 2 or how.samples < 2:
            return None
        drawn = resampled(columns, how.samples, how.seed)
        lm, _, mixed = (-drawn[:, :3] / drawn[:, 3:]).T
        intervals = {"lm": _middle(lm)}
        if how.with_knn:
            # The difference of two infinite sums has no meaning.
            with np.errstate(invalid="ignore"):
                intervals |= {"interpolated": _middle(mixed), "ratio": _middle(mixed - lm)}
        return intervals


def join(tallies: list[Tally]) -> Tally:
    """Joins the documents of several texts."""
    joined = Tally()
    joined._sums = np.concatenate([tally._sums for tally in tallies])
    joined.searches = sum(tally.searches for tally in tallies)
    return joined


def perplexity(nats: float, count: float) -> float | None:
    """Computes exp(nats / count); None if it is infinite or the count is 0."""
    if count <= 0 or not nats / count < _LARGEST_EXPONENT:
        return None
    return math.exp(nats / count)


def _bits(nats: float, count: int) -> float | None:
    return nats / math.log(2.0) / count if count and math.isfinite(nats) else None


def _middle(nats: Floats) -> tuple[float, float] | None:
    if not np.isfinite(nats).all() or np.abs(nats).max() > _LARGEST_EXPONENT:
        return None
    low, high = np.quantile(nats, [0.025, 0.975])
    return math.exp(low), math.exp(high)


def resampled(units: Floats, samples: int, seed: int) -> Floats:
    """Sums of columns, [samples, columns], had other units, [units, columns], been drawn."""
    random = np.random.default_rng(seed)
    drawn = np.empty((samples, units.shape[1]))
    at_once = max(1, _DRAWN_AT_ONCE // len(units))
    for first in range(0, samples, at_once):
        chosen = random.integers(0, len(units), (min(at_once, samples - first), len(units)))
        drawn[first : first + at_once] = units[chosen].sum(axis=1)
    return drawn


def ratio_interval(units: Floats, samples: int, seed: int) -> tuple[float, float] | None:
    """95% interval of exp(sum of the first column / sum of the second), by the bootstrap."""
    if len(units) < 2 or samples < 2:
        return None
    sums, sizes = resampled(units, samples, seed).T
    low, high = np.exp(np.quantile(sums / sizes, [0.025, 0.975]))
    return float(low), float(high)
