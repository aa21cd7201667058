"""`Neighbors`: what one search returns, each field with its shape. No mathematics, no files."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from knn_logits.config import Metric
from knn_logits.occurrences import Occurrences


def padding_distance(metric: Metric) -> float:
    """The distance of what was not found: infinitely far."""
    return math.inf if metric == "l2" else -math.inf


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
        searched: bool [rows], whether the index was searched for a row; None means for all.
        occurrences: Where the end of each row's text stands word for word; None where nobody
            looked.
        matched: int64 [rows, k], for an entry that is such an occurrence how many tokens before it
            are the text's, and 0 for one that a search found; None where all were. An occurrence
            is infinitely far: nobody compared its key.
    """

    ids: Tensor
    distances: Tensor
    values: Tensor
    every_row: bool = False
    searched: Tensor | None = None
    occurrences: Occurrences | None = None
    matched: Tensor | None = None

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
        searched = None if self.searched is None else self.searched[rows]
        return replace(
            self,
            ids=self.ids[rows],
            distances=self.distances[rows],
            values=self.values[rows],
            searched=searched,
            occurrences=None if self.occurrences is None else self.occurrences[rows],
            matched=None if self.matched is None else self.matched[rows],
        )

    def padded(self, k: int, metric: Metric) -> Neighbors:
        """The same neighbors in k columns, at least as many as there are."""
        missing = k - self.k
        if not missing:
            return self
        pad = torch.nn.functional.pad
        return replace(
            self,
            ids=pad(self.ids, (0, missing), value=-1),
            distances=pad(self.distances, (0, missing), value=padding_distance(metric)),
            values=pad(self.values, (0, missing), value=0),
        )

    def among(self, rows: Tensor, metric: Metric) -> Neighbors:
        """These neighbors as those of some of more queries; the others have none.

        Args:
            rows: bool [more rows], True for the queries that these are of, in their order.
            metric: Of the distances.

        Returns:
            Neighbors of all of them; no search was made for the others.
        """
        there = rows.to(self.ids.device)
        more = Neighbors(
            self.ids.new_full((len(rows), self.k), -1),
            self.distances.new_full((len(rows), self.k), padding_distance(metric)),
            self.values.new_zeros((len(rows), self.k)),
            every_row=self.every_row and self.rows == len(rows),
            searched=rows.cpu().clone(),
        )
        more.ids[there] = self.ids
        more.distances[there] = self.distances
        more.values[there] = self.values
        if self.searched is not None and more.searched is not None:
            more.searched[rows.cpu()] = self.searched
        return more

    def to(self, device: torch.device | str) -> Neighbors:
        """The same neighbors with all tensors on `device`."""
        if self.ids.device == torch.device(device):
            return self
        return replace(
            self,
            ids=self.ids.to(device),
            distances=self.distances.to(device),
            values=self.values.to(device),
            occurrences=None if self.occurrences is None else self.occurrences.to(device),
            matched=None if self.matched is None else self.matched.to(device),
        )

    @classmethod
    def nothing(cls, rows: int, device: torch.device | str = "cpu") -> Neighbors:
        """No neighbors at all for `rows` queries: fields of shape [rows, 0]."""
        return cls(
            torch.empty(rows, 0, dtype=torch.int64, device=device),
            torch.empty(rows, 0, dtype=torch.float32, device=device),
            torch.empty(rows, 0, dtype=torch.int64, device=device),
        )


def with_occurrences(neighbors: Neighbors, metric: Metric) -> Neighbors:
    """The neighbors and the occurrences beside them as entries of one kind.

    Args:
        neighbors: With occurrences.
        metric: Of the distances.

    Returns:
        Neighbors of `k` and more columns; `matched` tells them apart.
    """
    more = neighbors.occurrences
    assert more is not None
    far = torch.full_like(more.log_weights, padding_distance(metric))
    lengths = more.lengths.unsqueeze(-1).expand_as(more.ids)
    return Neighbors(
        torch.cat([neighbors.ids, more.ids], dim=-1),
        torch.cat([neighbors.distances, far], dim=-1),
        torch.cat([neighbors.values, more.values], dim=-1),
        searched=neighbors.searched,
        matched=torch.cat([torch.zeros_like(neighbors.ids), lengths], dim=-1),
    )


def nearest_distance(neighbors: Neighbors, metric: Metric) -> Tensor:
    """Of each row's nearest neighbor.

    Returns:
        [rows]: the smallest squared distance ("l2") or the largest similarity ("ip", "cosine");
        infinitely far where a row has no neighbor.
    """
    distances = neighbors.distances
    if distances.shape[-1] == 0:
        far = torch.inf if metric == "l2" else -torch.inf
        return distances.new_full((neighbors.rows,), far)
    return distances.amin(-1) if metric == "l2" else distances.amax(-1)


def are_near(neighbors: Neighbors, metric: Metric, limit: float) -> Tensor:
    """bool [rows], whether the nearest neighbor is within a distance, or a similarity."""
    nearest = nearest_distance(neighbors, metric)
    return nearest <= limit if metric == "l2" else nearest >= limit


# So many of the nearest entries say whether a datastore knows what follows.
NEAREST = 64


def hits(neighbors: Neighbors, tokens: Tensor, metric: Metric) -> Tensor:
    """Whether one of the nearest entries of each query has the token that follows.

    Text like a datastore's has many hits in it, and other text has few, however much stands before
    it: that tells them apart better than distances do (LOG.md).

    Args:
        neighbors: Of `rows` queries.
        tokens: int64 [rows], the tokens that follow.
        metric: Of the distances.

    Returns:
        bool [rows].
    """
    same = (neighbors.values == tokens.to(neighbors.values.device).unsqueeze(-1)) & neighbors.mask
    if neighbors.k > NEAREST:
        order = neighbors.distances.topk(NEAREST, dim=-1, largest=metric != "l2").indices
        same = same.gather(-1, order)
    return same.any(dim=-1)
