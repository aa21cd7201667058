"""Whether a setting is significantly better than another: a bootstrap over documents or blocks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from knn_logits.arrays import Floats, Ints
from knn_logits.measure.results import ratio_interval

# With fewer documents, blocks of tokens are drawn.
FEW_DOCUMENTS = 10
# The fewest held-out tokens, if documents are drawn and if blocks are drawn.
LEAST_OF_DOCUMENTS, LEAST_OF_BLOCKS = 1000, 4000
_BLOCK = 64  # tokens of a block
# Half of a 95% interval in standard errors.
_WIDTH = 1.96
# Advice to provide more text by a larger factor would be useless.
_MAX_FACTOR = 1000


@dataclass(frozen=True)
class Verdict:
    """The comparison of one setting with another on held-out text."""

    ratio: float  # the perplexity under the setting divided by the perplexity under the other
    # 95% interval of the ratio; None if there are too few units to draw.
    interval: tuple[float, float] | None
    units: str  # what is drawn: "documents" or "blocks of tokens"
    count: int  # number of units
    tokens: int  # number of held-out tokens
    # An estimate of the held-out tokens needed for an interval below 1. None if the interval is
    # below 1 already, or if no amount of text would help.
    needed: int | None

    @property
    def better(self) -> bool:
        """Whether the setting is significantly better."""
        below = self.interval is not None and self.interval[1] < 1.0
        return below and self.tokens >= _least(self.units == "documents")

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, for JSON."""
        content = asdict(self)
        needed, interval = content.pop("needed"), self.interval and list(self.interval)
        return {"better": self.better, **content, "interval": interval, "tokens_needed": needed}

    def reason(self, subject: str, than: str) -> str:
        """Says why the setting is not significantly better, and what would help."""
        if self.interval is None:
            message = f"{subject} cannot be compared with {than} on {self.count} {self.units}"
        elif self.interval[1] >= 1.0:
            low, high = (f"{bound - 1:+.1%}" for bound in self.interval)
            message = (
                f"{subject} is not significantly better than {than}: perplexity "
                f"{self.ratio - 1:+.1%}, 95% interval {low} to {high}"
            )
        else:
            message = f"{subject} cannot be trusted: {self.tokens:,} held-out tokens are too few"
        if self.needed is None:
            return f"{message}; more text like this would not help"
        return (
            f"{message}; give about {2 * self.needed:,} tokens of text, half of which is held out, "
            f"in {2 * FEW_DOCUMENTS} documents or more"
        )


def compared(gains: Floats, documents: Ints, *, samples: int, seed: int) -> Verdict:
    """Compares two settings by each token's gain, float64, and document, int64 [tokens]."""
    numbers, units = np.unique(documents, return_inverse=True)
    whole = len(numbers) >= FEW_DOCUMENTS
    if not whole:
        order = np.argsort(units, kind="stable")
        counts = np.bincount(units)
        inside = np.arange(len(units)) - np.repeat(np.cumsum(counts) - counts, counts)
        blocks = units[order] * (len(units) + 1) + inside // _BLOCK
        gains, units = gains[order], np.unique(blocks, return_inverse=True)[1]
    gains, tokens = np.bincount(units, gains).astype(np.float64), np.bincount(units)
    total = max(1, int(tokens.sum()))
    mean = float(gains.sum()) / total
    interval = ratio_interval(np.stack([-gains, tokens], axis=-1), samples, seed)
    name = "documents" if whole else "blocks of tokens"
    verdict = Verdict(math.exp(-mean), interval, name, len(gains), total, None)
    if verdict.better or mean <= 0.0:
        return verdict
    # The error of a ratio of sums shrinks with the root of the number of units. With few units the
    # error itself is uncertain, so somewhat more units are needed.
    error = math.sqrt(float(((gains - mean * tokens) ** 2).sum())) / total
    times = max((_WIDTH * error / mean) ** 2, 1.0)
    if interval is None or interval[1] >= 1.0:
        times = max(times, 1.25)
    needed = max(math.ceil(total * times), _least(whole))
    return replace(verdict, needed=_rounded(needed) if times <= _MAX_FACTOR else None)


def _least(documents: bool) -> int:
    return LEAST_OF_DOCUMENTS if documents else LEAST_OF_BLOCKS


def _rounded(number: int) -> int:
    """Rounds a number up to two digits, for advice."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return -(-number // step) * step
