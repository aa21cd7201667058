"""`Occurrences`: where the longest end of a text stands in a corpus, and what follows it there.

Tensors and arrays only: nothing here knows of models or files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array

_NOTHING = float("-inf")


@dataclass(frozen=True)
class Prefixes:
    """The text before each of some tokens.

    Attributes:
        tokens: int64 [any number], the texts, one after another. A negative number is no token,
            and ends what is looked at.
        first: int64 [rows], where each row's text begins.
        end: int64 [rows], behind its last token.
    """

    tokens: Array
    first: Array
    end: Array

    def __len__(self) -> int:
        return len(self.end)

    def __getitem__(self, rows: Tensor | Array | slice) -> Prefixes:
        """The texts of some rows."""
        own = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        return Prefixes(self.tokens, self.first[own], self.end[own])

    @classmethod
    def of_steps(cls, ids: Tensor, positions: int) -> Prefixes:
        """The texts of the last steps of a batch.

        Args:
            ids: int64 [rows, length], the texts up to the last step.
            positions: Steps in a row that are asked about.

        Returns:
            `rows * positions` texts, all rows of a position after another.
        """
        rows, length = ids.shape
        first = np.tile(np.arange(rows, dtype=np.int64) * length, positions)
        last = np.repeat(np.arange(length - positions + 1, length + 1, dtype=np.int64), rows)
        return cls(ids.reshape(-1).cpu().numpy(), first, first + last)


@dataclass(frozen=True)
class Occurrences:
    """The occurrences of the longest end of some texts that occurs at all; each one votes.

    Attributes:
        ids: int64 [rows, n], entries, -1 for padding.
        values: int64 [rows, n], the token that follows there.
        log_weights: float32 [rows, n], log of each one's part in the row's vote; -inf for padding.
            They sum to 1 in a row, or are all 0 where nothing occurs.
        lengths: int64 [rows], tokens of the end that occurs; 0 for none.
        counts: int64 [rows], how often it occurs.
        shares: float32 [rows], how much these votes count in the mixture.
    """

    ids: Tensor
    values: Tensor
    log_weights: Tensor
    lengths: Tensor
    counts: Tensor
    shares: Tensor

    def __getitem__(self, rows: Tensor | slice) -> Occurrences:
        """Those of some rows."""
        there = rows if isinstance(rows, slice) else rows.to(self.ids.device)
        return Occurrences(
            self.ids[there],
            self.values[there],
            self.log_weights[there],
            self.lengths[there],
            self.counts[there],
            self.shares[there],
        )

    def to(self, device: torch.device | str) -> Occurrences:
        """The same with all tensors on `device`."""
        return Occurrences(
            self.ids.to(device),
            self.values.to(device),
            self.log_weights.to(device),
            self.lengths.to(device),
            self.counts.to(device),
            self.shares.to(device),
        )

    def weighed(self, shares: Tensor) -> Occurrences:
        """The same with other shares in the mixture, float32 [rows]."""
        return replace(self, shares=shares)


def join(parts: list[Occurrences]) -> Occurrences:
    """What several corpora hold of the same texts, as if they were one corpus.

    Args:
        parts: Of each corpus; the entries count through all of them.

    Returns:
        The occurrences of the longest end that any of them holds.
    """
    if len(parts) == 1:
        return parts[0]
    lengths = torch.stack([one.lengths for one in parts])
    longest = lengths.amax(dim=0)
    counts = torch.stack([one.counts for one in parts]) * (lengths == longest)
    total = counts.sum(dim=0)
    logs = (counts.double() / total.clamp(min=1)).log().float()
    weights = [
        (one.log_weights + own.unsqueeze(-1)).nan_to_num(nan=_NOTHING, neginf=_NOTHING)
        for one, own in zip(parts, logs, strict=True)
    ]
    log_weights = torch.cat(weights, dim=-1)
    ids = torch.cat([one.ids for one in parts], dim=-1)
    return Occurrences(
        ids.masked_fill(log_weights == _NOTHING, -1),
        torch.cat([one.values for one in parts], dim=-1),
        log_weights,
        longest,
        total,
        parts[0].shares,
    )
