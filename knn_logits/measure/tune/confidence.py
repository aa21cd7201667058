"""Whether a setting is significantly better than another: a bootstrap over documents or blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from knn_logits.arrays import Floats, Ints
from knn_logits.measure.likelihood import Grid, GridLikelihood
from knn_logits.measure.results import ratio_interval
from knn_logits.measure.text_pass import TokenScores
from knn_logits.mixture.vote import Weighing
from knn_logits.search.neighbors import Neighbors

# With fewer documents, blocks of tokens are drawn.
FEW_DOCUMENTS = 10
# The fewest held-out tokens, if documents are drawn and if blocks are drawn.
LEAST_OF_DOCUMENTS, LEAST_OF_BLOCKS = 1000, 4000
# The number of tokens of the smallest block.
_BLOCK = 64
# The most cells of a text. A cell has a number for each setting of a grid, about 25 kB.
_CELLS = 256
_BLOCKS = "blocks of tokens"
# The 95% interval reaches so many standard errors to each side.
_WIDTH = 1.96
# Advice to give more than so many times the text would be useless.
_MOST = 1000


@dataclass(frozen=True)
class Verdict:
    """The comparison of one setting with another on held-out text."""

    ratio: float  # the perplexity under the setting divided by the perplexity under the other
    # 95% interval of the ratio; None if there are too few units to draw.
    interval: tuple[float, float] | None
    units: str  # what is drawn: "documents", "groups of documents" or "blocks of tokens"
    count: int  # number of units
    tokens: int  # number of held-out tokens
    # An estimate of the held-out tokens needed for an interval below 1. None if the interval is
    # below 1 already, or if no amount of text would help.
    needed: int | None

    @property
    def better(self) -> bool:
        """Whether the setting is significantly better."""
        below = self.interval is not None and self.interval[1] < 1.0
        return below and self.tokens >= _least(self.units != _BLOCKS)

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


def compared(
    gains: Floats, tokens: Ints, documents: bool, *, grouped: bool, samples: int, seed: int
) -> Verdict:
    """Compares two settings by each unit's gain in log-likelihood, float64 [units]."""
    units = ("groups of documents" if grouped else "documents") if documents else _BLOCKS
    total = max(1, int(tokens.sum()))
    mean = float(gains.sum()) / total
    interval = ratio_interval(np.stack([-gains, tokens], axis=-1), samples, seed)
    verdict = Verdict(math.exp(-mean), interval, units, len(gains), total, None)
    if verdict.better or mean <= 0.0:
        return verdict
    # The error of a ratio of sums shrinks with the root of the number of units. With few units the
    # error itself is uncertain, so somewhat more units are needed.
    error = math.sqrt(float(((gains - mean * tokens) ** 2).sum())) / total
    times = max((_WIDTH * error / mean) ** 2, 1.0)
    if interval is None or interval[1] >= 1.0:
        times = max(times, 1.25)
    needed = max(math.ceil(total * times), _least(documents))
    return replace(verdict, needed=_rounded(needed) if times <= _MOST else None)


def compared_by_token(gains: Floats, documents: Ints, *, samples: int, seed: int) -> Verdict:
    """Compares two settings by each token's gain, float64, and document, int64 [tokens]."""
    numbers, units = np.unique(documents, return_inverse=True)
    whole = len(numbers) >= FEW_DOCUMENTS
    if not whole:
        order = np.argsort(units, kind="stable")
        counts = np.bincount(units)
        inside = np.arange(len(units)) - np.repeat(np.cumsum(counts) - counts, counts)
        blocks = units[order] * (len(units) + 1) + inside // _BLOCK
        gains, units = gains[order], np.unique(blocks, return_inverse=True)[1]
    return compared(
        np.bincount(units, gains).astype(np.float64),
        np.bincount(units),
        whole,
        grouped=False,
        samples=samples,
        seed=seed,
    )


def _least(documents: bool) -> int:
    return LEAST_OF_DOCUMENTS if documents else LEAST_OF_BLOCKS


def _rounded(number: int) -> int:
    """Rounds a number up to two digits, for advice."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return -(-number // step) * step


class Cells:
    """Log-likelihoods of a text under a grid, by document and block, in at most 256 cells."""

    def __init__(self) -> None:
        self._block, self._group = _BLOCK, 1
        self._cells: dict[tuple[int, int], tuple[int, Tensor]] = {}

    def parts(self, documents: Ints, places: Ints) -> Iterator[tuple[tuple[int, int], slice]]:
        """Yields each cell with its stretch of tokens, given documents and places within them."""
        groups, blocks = documents // self._group, places // self._block
        edges = np.flatnonzero((np.diff(groups) != 0) | (np.diff(blocks) != 0)) + 1
        for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(groups)], strict=True):
            yield (int(groups[first]), int(blocks[first])), slice(first, last)

    def add(self, cell: tuple[int, int], tokens: int, sums: Tensor) -> None:
        """Adds to a cell that `parts` named."""
        before = self._cells.get(cell)
        if before is not None:
            tokens, sums = tokens + before[0], sums + before[1]
        self._cells[cell] = (tokens, sums)

    def settle(self) -> None:
        """Makes cells larger if there are too many. It is called between two calls of `parts`."""
        while len(self._cells) > _CELLS:
            documents = len({document for document, _ in self._cells})
            if 2 * documents > len(self._cells):
                self._group *= 2
                # Positions count from a document's beginning, so a group of documents is one cell.
                self._merge(lambda document, _: (document // 2, 0))
                self._block = 1 << 62
            else:
                self._block *= 2
                self._merge(lambda document, block: (document, block // 2))

    def _merge(self, place: Callable[[int, int], tuple[int, int]]) -> None:
        old, self._cells = self._cells, {}
        for (document, block), (tokens, sums) in old.items():
            self.add(place(document, block), tokens, sums)

    def verdict(
        self,
        before: tuple[int, int, int],
        chosen: tuple[int, int, int],
        *,
        samples: int,
        seed: int,
        other: Cells | None = None,
    ) -> Verdict:
        """Compares one setting of the grid with another."""
        other = other or self
        documents = {document for document, _ in self._cells}
        whole = len(documents) >= FEW_DOCUMENTS
        for cells in (self, other) if whole else ():
            cells._merge(lambda document, _: (document, 0))
        pairs = [(sums, other._cells[cell][1]) for cell, (_, sums) in self._cells.items()]
        gains = np.array([float(sums[chosen] - base[before]) for sums, base in pairs])
        tokens = np.array([tokens for tokens, _ in self._cells.values()], dtype=np.int64)
        return compared(gains, tokens, whole, grouped=self._group > 1, samples=samples, seed=seed)


class HeldOut(GridLikelihood):
    """The likelihood of a held-out text under each setting of a grid, in total and by parts."""

    def __init__(self, grid: Grid, weighing: Weighing | None = None) -> None:
        super().__init__(grid, weighing)
        self.cells = Cells()

    def add_by_cell(
        self,
        documents: Ints,
        places: Ints,
        neighbors: Neighbors,
        scored: TokenScores,
        keep: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Adds tokens, as `add` does, with their documents and places within them."""
        for cell, rows in self.cells.parts(documents, places):
            before, tokens = self.sums.clone(), self.tokens
            self.add(neighbors[rows], scored.targets[rows], scored.log_p_lm[rows], keep)
            self.cells.add(cell, self.tokens - tokens, self.sums - before)
        self.cells.settle()
