"""`Neighbors`: what one search returns, each field with its shape. No mathematics, no files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Neighbors:
    """The nearest entries of a batch of queries.

    Neighbors of a row come in no promised order; padding, where fewer were found than asked for,
    stands last in it.

    Attributes:
        ids: int64 [rows, k], the entry's number in the datastore; -1 for padding.
        distances: float32 [rows, k]. Squared Euclidean distance for the metric "l2" (smaller is
            nearer, padding +inf), a similarity for "ip" and "cosine" (larger is nearer, padding
            -inf): padding is infinitely far, so that it has no weight.
        values: int64 [rows, k], the token that followed the key; any token for padding.
        every_row: Whether every row is known to have a neighbor, which spares several steps.
    """

    ids: Tensor
    distances: Tensor
    values: Tensor
    every_row: bool = False

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
        """Columns: neighbors a query, padding included."""
        return int(self.ids.shape[1])

    def __getitem__(self, rows: Tensor | slice) -> Neighbors:
        """The neighbors of some of the queries."""
        return Neighbors(
            self.ids[rows], self.distances[rows], self.values[rows], every_row=self.every_row
        )

    def to(self, device: torch.device | str) -> Neighbors:
        """The same neighbors with all tensors on `device`."""
        if self.ids.device == torch.device(device):
            return self
        return Neighbors(
            self.ids.to(device),
            self.distances.to(device),
            self.values.to(device),
            every_row=self.every_row,
        )

    @classmethod
    def nothing(cls, rows: int, device: torch.device | str = "cpu") -> Neighbors:
        """No neighbors at all for `rows` queries: fields of shape [rows, 0]."""
        return cls(
            torch.empty(rows, 0, dtype=torch.int64, device=device),
            torch.empty(rows, 0, dtype=torch.float32, device=device),
            torch.empty(rows, 0, dtype=torch.int64, device=device),
        )
