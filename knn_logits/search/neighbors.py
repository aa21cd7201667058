"""The input and the results of a search: `Prefixes`, `Occurrences` and `Neighbors`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.index.base import nearest_columns
from knn_logits.metrics import DEFAULT_METRIC, Metric, as_distance

# The fields with a number for each entry, and what padding has there.
PADDING: dict[str, float] = {
    "ids": -1,
    "nearness": -math.inf,
    "values": 0,
    "shared": 0.0,
    "pointed": 0.0,
    "matched": 0,
}
_BY_ROW = ("searched",)


@dataclass(frozen=True)
class Prefixes:
    """The text before each of some tokens. A negative number is no token, and ends a suffix."""

    tokens: Array  # int64, the texts, one after another
    first: Array  # int64 [rows], the place in `tokens` of the first token of each row's text
    end: Array  # int64 [rows], the place after its last token
    # int32 [rows, number], its last tokens on a device, the last first, where no more is needed
    last: Tensor | None = None

    def __len__(self) -> int:
        return len(self.end)

    def last_tokens(self, number: int) -> Tensor:
        """The last tokens of each text, the last first, int32 [rows, number]; -1 for none."""
        if self.last is not None:
            return self.last[:, :number]
        places = self.end[:, None] - np.arange(1, number + 1)
        inside = places >= self.first[:, None]
        tokens = np.append(self.tokens, -1)[np.where(inside, places, -1)]
        return torch.from_numpy(tokens.astype(np.int32))

    def __getitem__(self, rows: Tensor | Array | slice) -> Prefixes:
        selected = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        return Prefixes(self.tokens, self.first[selected], self.end[selected])

    @classmethod
    def of_steps(cls, ids: Tensor, positions: int, padding: Sequence[int] = ()) -> Prefixes:
        """The texts before the last `positions` steps of texts `ids`, int64 [rows, length].

        At the beginning of a text, tokens of `padding` become -1, also where the text begins so.
        """
        tokens, (rows, length) = ids.cpu().numpy(), ids.shape
        # Most texts begin with a token, which is seen faster than where padding ends.
        begin = tokens[:, :1].ravel().tolist() if padding else ()
        if any(token < 0 or token in padding for token in begin):
            opening = np.logical_and.accumulate((tokens < 0) | np.isin(tokens, padding), axis=1)
            # Other negative numbers stay: RetoMaton tells texts of several sources apart by them.
            tokens = np.where(opening & (tokens >= 0), -1, tokens)
        last = np.arange(length - positions + 1, length + 1)[:, None]
        first = np.zeros_like(last) + np.arange(rows) * length
        return cls(tokens.reshape(-1), first.ravel(), (first + last).ravel())


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
        ids = torch.empty(rows, 0, dtype=torch.int64)
        logs = torch.empty(rows, 0, dtype=torch.float32)
        nothing = torch.zeros(rows, dtype=torch.int64)
        shares = (torch.zeros(rows, dtype=torch.float32) for _ in range(3))
        return cls(ids, ids, logs, nothing, nothing, *shares)

    def __getitem__(self, rows: Tensor | slice) -> Occurrences:
        index = rows if isinstance(rows, slice) else rows.to(self.ids.device)
        return Occurrences(*(one[index] for one in self.tensors()))

    def to(self, device: torch.device | str) -> Occurrences:
        if self.ids.device == torch.device(device):
            return self
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
            log_weights=pad(self.log_weights, (0, missing), value=-math.inf),
        )

    def packed(self) -> Tensor:
        """All fields side by side, float64 [rows, 3 n + 5], for one copy to a device.

        float64 holds each number exactly. n is a power of two of at least 256, since each width
        needs a CUDA graph of its own.
        """
        fields = self.padded(1 << max(8, (self.ids.shape[1] - 1).bit_length())).tensors()
        return torch.column_stack([field.double() for field in fields])

    @classmethod
    def unpacked(cls, found: Tensor) -> Occurrences:
        width = (found.shape[1] - 5) // 3
        ids, values, logs, counts, shares = found.split([width, width, width, 2, 3], dim=-1)
        whole = (one.contiguous() for one in counts.long().unbind(-1))
        parts = (one.contiguous() for one in shares.float().unbind(-1))
        return cls(ids.long(), values.long(), logs.float(), *whole, *parts)

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


def joined_occurrences(parts: list[Occurrences]) -> Occurrences:
    """Joins the occurrences in several corpora, as if these were one corpus."""
    lengths = torch.stack([part.lengths for part in parts])
    longest = lengths.amax(dim=0)
    counts = torch.stack([part.counts for part in parts]) * (lengths == longest)
    total = counts.sum(dim=0)
    logs = (counts.double() / total.clamp(min=1)).log().float()
    weights = [
        (part.log_weights + log_share.unsqueeze(-1)).nan_to_num(nan=-math.inf, neginf=-math.inf)
        for part, log_share in zip(parts, logs, strict=True)
    ]
    log_weights = torch.cat(weights, dim=-1)
    ids = torch.cat([part.ids for part in parts], dim=-1)
    return Occurrences(
        ids.masked_fill(log_weights == -math.inf, -1),
        torch.cat([part.values for part in parts], dim=-1),
        log_weights,
        longest,
        total,
        parts[0].shares,
        parts[0].rarity,
        parts[0].coverage,
    )


@dataclass(frozen=True)
class Neighbors:
    """The nearest entries of a batch of queries, with what is known of each.

    The neighbors of a row are in no particular order. Where fewer were found than asked for, the
    row ends with padding. `mixture.vote` makes weights of the features.

    Attributes:
        ids: int64 [rows, k], the entry's number in the datastore; -1 for padding.
        nearness: float32 [rows, k], larger is nearer; -inf for padding.
        values: int64 [rows, k], the token that followed the key; any token for padding.
        metric: How keys were compared.
        searched: bool [rows], whether the index was searched for a row; None means for every row.
        shared: float32 [rows, k], how many tokens before each entry are also before the query, up
            to 8; None if they were not counted.
        pointed: float32 [rows, k], 1 for an entry that a pointer led to, and 0 for others; None
            without pointers.
        occurrences: What each expert beside the neighbors votes by, such as the places where the
            end of each row's text occurs word for word.
        matched: int64 [rows, k], for an entry that is such an occurrence the number of tokens
            before it that it shares with the text, and 0 for an entry that a search found. None if
            a search found all entries. An occurrence that the ∞-gram found has the nearness -inf,
            since its key was not compared.
    """

    ids: Tensor
    nearness: Tensor
    values: Tensor
    metric: Metric = DEFAULT_METRIC
    searched: Tensor | None = None
    shared: Tensor | None = None
    pointed: Tensor | None = None
    occurrences: tuple[Occurrences, ...] = ()
    matched: Tensor | None = None

    @property
    def distances(self) -> Tensor:
        """float32 [rows, k], the distances or similarities that `metric` has."""
        distances: Tensor = as_distance(self.nearness, self.metric)
        return distances

    @property
    def mask(self) -> Tensor:
        """bool [rows, k], True where there is an entry."""
        return self.ids >= 0

    @property
    def rows(self) -> int:
        """Number of queries."""
        return int(self.ids.shape[0])

    @property
    def k(self) -> int:
        """Number of columns: neighbors of each query, padding included."""
        return int(self.ids.shape[1])

    def mapped(self, change: Callable[[Tensor, float], Tensor], **fields: Any) -> Neighbors:
        """Returns the same with `change(field, padding)` in place of each field by entry."""
        changed = {
            name: change(field, padding)
            for name, padding in PADDING.items()
            if (field := getattr(self, name)) is not None
        }
        return replace(self, **{**changed, **fields})

    def __getitem__(self, rows: Tensor | slice) -> Neighbors:
        by_row = {
            name: field[rows] for name in _BY_ROW if (field := getattr(self, name)) is not None
        }
        occurrences = tuple(part[rows] for part in self.occurrences)
        return self.mapped(lambda field, _: field[rows], occurrences=occurrences, **by_row)

    def columns(self, order: Tensor) -> Neighbors:
        """The neighbors in the columns that each row of `order`, int64 [rows, k], names."""
        return self.mapped(lambda field, _: field.gather(-1, order))

    def nearest(self, k: int) -> Neighbors:
        """The k nearest neighbors of each query, the nearest first; of equal ones by id."""
        return self.columns(nearest_columns(self.nearness, min(k, self.k), self.ids)[1])

    def padded(self, k: int) -> Neighbors:
        """The same neighbors, padded to k columns. k is at least the present number of columns."""
        missing = k - self.k
        if not missing:
            return self
        pad = torch.nn.functional.pad
        return self.mapped(lambda field, padding: pad(field, (0, missing), value=padding))

    def without(self, hidden: Tensor) -> Neighbors:
        """Replaces some entries, bool [rows, k], by padding."""
        return replace(
            self,
            ids=self.ids.masked_fill(hidden, -1),
            nearness=self.nearness.masked_fill(hidden, -math.inf),
        )

    def to(self, device: torch.device | str) -> Neighbors:
        """The same neighbors with all tensors on `device`. `searched` stays on the CPU."""
        present = {self.ids.device}
        for part in self.occurrences:
            present.add(part.ids.device)
        if present == {torch.device(device)}:
            return self
        moved = tuple(part.to(device) for part in self.occurrences)
        return self.mapped(lambda field, _: field.to(device), occurrences=moved)

    def split(self, parts: int) -> list[Neighbors]:
        """The neighbors of several datastores that stand side by side in equally many columns."""
        width = self.k // parts

        def part(first: int) -> Neighbors:
            return self.mapped(lambda field, _: field[:, first : first + width])

        return [part(number * width) for number in range(parts)]


def joined(parts: Sequence[Neighbors], dim: int, **fields: Any) -> Neighbors:
    """Joins neighbors by rows (dim 0) or by columns (dim -1)."""
    present = {
        name: padding
        for name, padding in PADDING.items()
        if any(getattr(part, name) is not None for part in parts)
    }

    def column(part: Neighbors, name: str) -> Tensor:
        field: Tensor | None = getattr(part, name)
        return torch.full_like(part.nearness, PADDING[name]) if field is None else field

    whole = {name: torch.cat([column(part, name) for part in parts], dim) for name in present}
    return Neighbors(metric=parts[0].metric, **{**whole, **fields})


def with_occurrences(neighbors: Neighbors) -> Neighbors:
    """The neighbors and the occurrences beside them as entries of one kind."""
    ids, nearness, values = [neighbors.ids], [neighbors.nearness], [neighbors.values]
    matched = [torch.zeros_like(neighbors.ids)]
    for part in neighbors.occurrences:
        ids.append(part.ids)
        nearness.append(torch.full_like(part.log_weights, -math.inf))
        values.append(part.values)
        matched.append(part.lengths.unsqueeze(-1).expand_as(part.ids))
    return Neighbors(
        torch.cat(ids, dim=-1),
        torch.cat(nearness, dim=-1),
        torch.cat(values, dim=-1),
        neighbors.metric,
        searched=neighbors.searched,
        matched=torch.cat(matched, dim=-1),
    )


def nearest_nearness(neighbors: Neighbors) -> Tensor:
    """The nearness of each row's nearest neighbor, float32 [rows]; -inf without neighbors."""
    if not neighbors.k:
        return neighbors.nearness.new_full((neighbors.rows,), -math.inf)
    return neighbors.nearness.amax(-1)


def powers_up_to(k: int, first: int = 1) -> tuple[int, ...]:
    """Returns first, 2 first, 4 first and so on up to k, and k itself."""
    powers = []
    while first < k:
        powers.append(first)
        first *= 2
    return (*powers, k)
