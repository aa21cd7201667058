"""`Occurrences` are the places of a corpus that contain the longest suffix of a text.

This module has only tensors and arrays. It does not know of models or files.
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
        tokens: int64 [any number], the texts, one after another. A negative number is not a token,
            and no suffix extends beyond it.
        first: int64 [rows], the place in `tokens` of the first token of each row's text.
        end: int64 [rows], the place after its last token.
    """

    tokens: Array
    first: Array
    end: Array

    def __len__(self) -> int:
        return len(self.end)

    def __getitem__(self, rows: Tensor | Array | slice) -> Prefixes:
        """Returns the texts of some rows."""
        selected = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        return Prefixes(self.tokens, self.first[selected], self.end[selected])

    @classmethod
    def of_steps(cls, ids: Tensor, positions: int) -> Prefixes:
        """Returns the texts of the last steps of a batch.

        Args:
            ids: int64 [rows, length], the texts up to the last step.
        """
        rows, length = ids.shape
        last = np.arange(length - positions + 1, length + 1)[:, None]
        first = np.zeros_like(last) + np.arange(rows) * length
        return cls(ids.reshape(-1).cpu().numpy(), first.ravel(), (first + last).ravel())


@dataclass(frozen=True)
class Occurrences:
    """The occurrences of the longest suffix of each text. Each occurrence votes.

    Attributes:
        ids: int64 [rows, n], the entries; -1 for padding.
        values: int64 [rows, n], the token that follows each occurrence.
        log_weights: float32 [rows, n], the log of each occurrence's share in the vote; -inf for
            padding. The shares of a row sum to 1, or are all 0 if nothing occurs.
        lengths: int64 [rows], the number of tokens of the suffix; 0 if nothing occurs.
        counts: int64 [rows], how often the suffix occurs.
        shares: float32 [rows], the share of these votes in the mixture.
    """

    ids: Tensor
    values: Tensor
    log_weights: Tensor
    lengths: Tensor
    counts: Tensor
    shares: Tensor

    def __getitem__(self, rows: Tensor | slice) -> Occurrences:
        """Returns the occurrences of some rows."""
        index = rows if isinstance(rows, slice) else rows.to(self.ids.device)
        return Occurrences(
            self.ids[index],
            self.values[index],
            self.log_weights[index],
            self.lengths[index],
            self.counts[index],
            self.shares[index],
        )

    def to(self, device: torch.device | str) -> Occurrences:
        """Returns the same with all tensors on `device`."""
        return Occurrences(
            self.ids.to(device),
            self.values.to(device),
            self.log_weights.to(device),
            self.lengths.to(device),
            self.counts.to(device),
            self.shares.to(device),
        )

    def weighed(self, shares: Tensor) -> Occurrences:
        """Returns the same with other shares in the mixture, float32 [rows]."""
        return replace(self, shares=shares)


def join(parts: list[Occurrences]) -> Occurrences:
    """Joins the occurrences in several corpora, as if these were one corpus."""
    if len(parts) == 1:
        return parts[0]
    lengths = torch.stack([part.lengths for part in parts])
    longest = lengths.amax(dim=0)
    counts = torch.stack([part.counts for part in parts]) * (lengths == longest)
    total = counts.sum(dim=0)
    logs = (counts.double() / total.clamp(min=1)).log().float()
    weights = [
        (part.log_weights + log_share.unsqueeze(-1)).nan_to_num(nan=_NOTHING, neginf=_NOTHING)
        for part, log_share in zip(parts, logs, strict=True)
    ]
    log_weights = torch.cat(weights, dim=-1)
    ids = torch.cat([part.ids for part in parts], dim=-1)
    return Occurrences(
        ids.masked_fill(log_weights == _NOTHING, -1),
        torch.cat([part.values for part in parts], dim=-1),
        log_weights,
        longest,
        total,
        parts[0].shares,
    )
