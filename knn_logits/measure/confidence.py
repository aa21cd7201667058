"""Whether a setting is significantly better than another: a bootstrap over documents or blocks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from knn_logits.arrays import Floats, Ints
from knn_logits.measure.results import ratio_interval

# With fewer documents, blocks of tokens are drawn.
FEW_DOCUMENTS = 10
# The fewest held-out tokens, if documents are drawn and if blocks are drawn.
LEAST_OF_DOCUMENTS, LEAST_OF_BLOCKS = 1000, 4000
_BLOCK = 64  # tokens of a block


@dataclass(frozen=True)
class Verdict:
    """The comparison of one setting with another on held-out text."""

    ratio: float  # the perplexity under the setting divided by the perplexity under the other
    # 95% interval of the ratio; None if there are too few units to draw.
    interval: tuple[float, float] | None
    units: str  # what is drawn: "documents" or "blocks of tokens"
    count: int  # number of units
    tokens: int  # number of held-out tokens

    @property
    def better(self) -> bool:
        """Whether the setting is significantly better."""
        least = LEAST_OF_DOCUMENTS if self.units == "documents" else LEAST_OF_BLOCKS
        below = self.interval is not None and self.interval[1] < 1.0
        return below and self.tokens >= least

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, for JSON."""
        return {"better": self.better, **asdict(self)}

    def reason(self, subject: str, than: str) -> str:
        """Says why the setting is not significantly better."""
        low, high = self.interval or (math.nan, math.nan)
        return (
            f"{subject} is not significantly better than {than} on {self.tokens:,} held-out "
            f"tokens: perplexity {self.ratio - 1:+.1%}, 95% interval {low - 1:+.1%} to "
            f"{high - 1:+.1%}"
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
    interval = ratio_interval(np.stack([-gains, tokens], axis=-1), samples, seed)
    name = "documents" if whole else "blocks of tokens"
    return Verdict(math.exp(-float(gains.sum()) / total), interval, name, len(gains), total)
