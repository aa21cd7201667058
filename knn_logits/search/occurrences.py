"""`Occurrences` are the places of a corpus that contain the longest suffix of a text."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array

_NOTHING = float("-inf")


@dataclass(frozen=True)
class Prefixes:
    """The text before each of some tokens. A negative number is no token, and ends a suffix."""

    tokens: Array  # int64, the texts, one after another
    first: Array  # int64 [rows], the place in `tokens` of the first token of each row's text
    end: Array  # int64 [rows], the place after its last token

    def __len__(self) -> int:
        return len(self.end)

    def __getitem__(self, rows: Tensor | Array | slice) -> Prefixes:
        """Returns the texts of some rows."""
        selected = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        return Prefixes(self.tokens, self.first[selected], self.end[selected])

    @classmethod
    def of_steps(cls, ids: Tensor, positions: int) -> Prefixes:
        """The texts before the last `positions` steps of texts `ids`, int64 [rows, length]."""
        rows, length = ids.shape
        last = np.arange(length - positions + 1, length + 1)[:, None]
        first = np.zeros_like(last) + np.arange(rows) * length
        return cls(ids.reshape(-1).cpu().numpy(), first.ravel(), (first + last).ravel())


@dataclass(frozen=True)
class Occurrences:
    """The occurrences of the longest suffix of each text. Each occurrence votes."""

    ids: Tensor  # int64 [rows, n], the entries; -1 for padding
    values: Tensor  # int64 [rows, n], the token that follows each occurrence
    log_weights: Tensor  # float32 [rows, n], log shares in the vote; -inf for padding
    lengths: Tensor  # int64 [rows], the number of tokens of the suffix; 0 if nothing occurs
    counts: Tensor  # int64 [rows], how often the suffix occurs
    shares: Tensor  # float32 [rows], the share of these votes in the mixture
    rarity: Tensor  # float32 [rows], the sum of -ln of the frequencies of the suffix's tokens
    coverage: Tensor  # float32 [rows], the share of the text's tokens that are in the suffix

    @classmethod
    def none(cls, rows: int) -> Occurrences:
        """No occurrences for any of the rows."""
        ids = torch.empty(rows, 0, dtype=torch.int64)
        logs = torch.empty(rows, 0, dtype=torch.float32)
        nothing = torch.zeros(rows, dtype=torch.int64)
        shares = (torch.zeros(rows, dtype=torch.float32) for _ in range(3))
        return cls(ids, ids, logs, nothing, nothing, *shares)

    def __getitem__(self, rows: Tensor | slice) -> Occurrences:
        """Returns the occurrences of some rows."""
        index = rows if isinstance(rows, slice) else rows.to(self.ids.device)
        return Occurrences(*(one[index] for one in self.tensors()))

    def to(self, device: torch.device | str) -> Occurrences:
        """Returns the same with all tensors on `device`."""
        # A copy to the host must be complete before it is read.
        later = torch.device(device).type == "cuda"
        return Occurrences(*(one.to(device, non_blocking=later) for one in self.tensors()))

    def padded(self, width: int) -> Occurrences:
        """Returns the same with `width` columns, at least as many as now."""
        missing = width - self.ids.shape[1]
        pad = torch.nn.functional.pad
        return replace(
            self,
            ids=pad(self.ids, (0, missing), value=-1),
            values=pad(self.values, (0, missing)),
            log_weights=pad(self.log_weights, (0, missing), value=_NOTHING),
        )

    def tensors(self) -> list[Tensor]:
        """The fields, in their order."""
        return [getattr(self, field.name) for field in fields(self)]

    def replaced(self, row: int, length: int, entries: list[int], value: int) -> Occurrences:
        """Returns the same with other occurrences in a row, which all have the same value."""
        padded = self.padded(max(self.ids.shape[1], len(entries)))
        changed = Occurrences(*(one.clone() for one in padded.tensors()))
        changed.log_weights[row] = _NOTHING
        changed.ids[row], changed.values[row] = -1, 0
        place = slice(len(entries))
        changed.ids[row, place] = torch.tensor(entries)
        changed.values[row, place] = value
        changed.log_weights[row, place] = -float(np.log(len(entries)))
        changed.lengths[row], changed.counts[row] = length, len(entries)
        return changed

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
        parts[0].rarity,
        parts[0].coverage,
    )


def without_padding(ids: Tensor, config: Any) -> Tensor:
    """Replaces padding tokens at the beginning of texts by -1, also where a text begins so."""
    end = getattr(config, "eos_token_id", None)
    pads = [getattr(config, "pad_token_id", None), *(end if isinstance(end, list) else [end])]
    # Most texts begin with a token, which is seen faster than where padding ends.
    if not ids.shape[1] or not any(id < 0 or id in pads for id in ids[:, 0].tolist()):
        return ids
    opening = ids < 0
    for pad in pads:
        if pad is not None:
            opening = opening | (ids == pad)
    opening = opening.int().cumprod(dim=-1).bool()
    # Other negative numbers stay: RetoMaton tells texts of several sources apart by them.
    return ids.masked_fill(opening & (ids >= 0), -1) if bool(opening.any()) else ids
