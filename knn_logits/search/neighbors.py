"""`Neighbors`: what a search returns, each feature of an entry by itself. It weighs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from knn_logits.index.base import nearest_columns
from knn_logits.metrics import DEFAULT_METRIC, Metric, as_distance
from knn_logits.search.occurrences import Occurrences

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

    @classmethod
    def from_distances(
        cls,
        ids: Tensor,
        distances: Tensor,
        values: Tensor,
        metric: Metric = DEFAULT_METRIC,
        **fields: Any,
    ) -> Neighbors:
        """Makes neighbors from distances, or from similarities, as the metric has them."""
        return cls(ids, as_distance(distances, metric), values, metric, **fields)

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
        """The neighbors of some of the queries."""
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
        if self.ids.device == torch.device(device):
            return self
        moved = tuple(part.to(device) for part in self.occurrences)
        return self.mapped(lambda field, _: field.to(device), occurrences=moved)

    def split(self, parts: int) -> list[Neighbors]:
        """The neighbors of several datastores that stand side by side in equally many columns."""
        width = self.k // parts

        def part(first: int) -> Neighbors:
            return self.mapped(lambda field, _: field[:, first : first + width])

        return [part(number * width) for number in range(parts)]

    @classmethod
    def nothing(cls, rows: int, device: torch.device | str = "cpu") -> Neighbors:
        """An empty result for `rows` queries, with fields of shape [rows, 0]."""
        return cls(
            torch.empty(rows, 0, dtype=torch.int64, device=device),
            torch.empty(rows, 0, dtype=torch.float32, device=device),
            torch.empty(rows, 0, dtype=torch.int64, device=device),
        )


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
    metric = next((part.metric for part in parts if part.k), parts[0].metric)
    return Neighbors(metric=metric, **{**whole, **fields})


def with_occurrences(neighbors: Neighbors) -> Neighbors:
    """The neighbors and the occurrences beside them as entries of one kind."""
    parts = neighbors.occurrences
    lengths = [part.lengths.unsqueeze(-1).expand_as(part.ids) for part in parts]
    far = [torch.full_like(part.log_weights, -math.inf) for part in parts]
    return Neighbors(
        torch.cat([neighbors.ids, *(part.ids for part in parts)], dim=-1),
        torch.cat([neighbors.nearness, *far], dim=-1),
        torch.cat([neighbors.values, *(part.values for part in parts)], dim=-1),
        neighbors.metric,
        searched=neighbors.searched,
        matched=torch.cat([torch.zeros_like(neighbors.ids), *lengths], dim=-1),
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
