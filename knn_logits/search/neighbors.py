"""`Neighbors`: what one search returns, each field with its shape. No mathematics, no files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from knn_logits.index.base import padding_distance
from knn_logits.search.occurrences import Occurrences
from knn_logits.settings.config import Metric


@dataclass(frozen=True)
class Neighbors:
    """The nearest entries of a batch of queries.

    The neighbors of a row are in no particular order. Where fewer were found than asked for, the
    row ends with padding.

    Attributes:
        ids: int64 [rows, k], the entry's number in the datastore; -1 for padding.
        distances: float32 [rows, k]. For the metric "l2" the squared Euclidean distance: smaller
            is nearer, and padding has +inf. For "ip" and "cosine" a similarity: larger is nearer,
            and padding has -inf. So padding gets no weight.
        values: int64 [rows, k], the token that followed the key; any token for padding.
        every_row: Whether every row is known to have a neighbor, which saves several steps.
        searched: bool [rows], whether the index was searched for a row; None means for every row.
        bonus: float32 [rows, k], what is added to the logit of each entry, -d/τ or s/τ, before the
            softmax over the neighbors. None adds nothing.
        shared: float32 [rows, k], how many tokens before each entry are also before the query, for
            which the bonus has the logarithm of the suffix weight each; None where none counts.
        occurrences: The places where the end of each row's text occurs word for word; None if they
            were not looked for.
        matched: int64 [rows, k], for an entry that is such an occurrence the number of tokens
            before it that it shares with the text, and 0 for an entry that a search found. None if
            a search found all entries. An occurrence has an infinite distance, since its key was
            not compared.
    """

    ids: Tensor
    distances: Tensor
    values: Tensor
    every_row: bool = False
    searched: Tensor | None = None
    bonus: Tensor | None = None
    shared: Tensor | None = None
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
        """Number of columns: neighbors of each query, padding included."""
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
            bonus=None if self.bonus is None else self.bonus[rows],
            shared=None if self.shared is None else self.shared[rows],
            occurrences=None if self.occurrences is None else self.occurrences[rows],
            matched=None if self.matched is None else self.matched[rows],
        )

    def padded(self, k: int, metric: Metric) -> Neighbors:
        """The same neighbors, padded to k columns. k is at least the present number of columns."""
        missing = k - self.k
        if not missing:
            return self
        pad = torch.nn.functional.pad
        return replace(
            self,
            ids=pad(self.ids, (0, missing), value=-1),
            distances=pad(self.distances, (0, missing), value=padding_distance(metric)),
            values=pad(self.values, (0, missing), value=0),
            bonus=None if self.bonus is None else pad(self.bonus, (0, missing)),
            shared=None if self.shared is None else pad(self.shared, (0, missing)),
        )

    def among(self, rows: Tensor, metric: Metric) -> Neighbors:
        """Spreads these neighbors over the rows of a larger batch.

        Args:
            rows: bool [rows of the batch]. The rows that are True get these neighbors, in order.
            metric: Metric of the distances.

        Returns:
            The neighbors of the whole batch. A row that is False has padding only, and counts as
            not searched.
        """
        there = rows.to(self.ids.device)
        more = Neighbors(
            self.ids.new_full((len(rows), self.k), -1),
            self.distances.new_full((len(rows), self.k), padding_distance(metric)),
            self.values.new_zeros((len(rows), self.k)),
            every_row=self.every_row and self.rows == len(rows),
            searched=rows.cpu().clone(),
            bonus=None if self.bonus is None else self.distances.new_zeros((len(rows), self.k)),
            shared=None if self.shared is None else self.distances.new_zeros((len(rows), self.k)),
        )
        more.ids[there] = self.ids
        more.distances[there] = self.distances
        more.values[there] = self.values
        if self.bonus is not None and more.bonus is not None:
            more.bonus[there] = self.bonus
        if self.shared is not None and more.shared is not None:
            more.shared[there] = self.shared
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
            bonus=None if self.bonus is None else self.bonus.to(device),
            shared=None if self.shared is None else self.shared.to(device),
            occurrences=None if self.occurrences is None else self.occurrences.to(device),
            matched=None if self.matched is None else self.matched.to(device),
        )

    def columns(self, parts: int) -> list[Neighbors]:
        """The neighbors of several datastores that stand side by side in equally many columns."""
        width = self.k // parts
        fields = {"ids": self.ids, "distances": self.distances, "values": self.values}
        fields |= {} if self.bonus is None else {"bonus": self.bonus}
        split = {name: one.split(width, dim=-1) for name, one in fields.items()}
        return [
            Neighbors(**{name: some[place] for name, some in split.items()})
            for place in range(parts)
        ]

    def reweighed(self, weight: float, other: float) -> Neighbors:
        """The same neighbors under another suffix weight.

        Args:
            weight: The suffix weight of the search, which is not 1.
            other: The suffix weight that the bonus shall have.
        """
        if self.bonus is None or self.shared is None or weight == other:
            return self
        bonus = self.bonus + self.shared * (math.log(other) - math.log(weight))
        return replace(self, bonus=bonus)

    @classmethod
    def nothing(cls, rows: int, device: torch.device | str = "cpu") -> Neighbors:
        """An empty result for `rows` queries, with fields of shape [rows, 0]."""
        return cls(
            torch.empty(rows, 0, dtype=torch.int64, device=device),
            torch.empty(rows, 0, dtype=torch.float32, device=device),
            torch.empty(rows, 0, dtype=torch.int64, device=device),
        )


def joined(parts: Sequence[Neighbors], name: Literal["bonus", "shared"], dim: int) -> Tensor | None:
    """Joins a field of several neighbors that some of them may lack.

    Args:
        parts: The neighbors.
        name: The field.
        dim: 0 joins rows, and -1 joins columns.

    Returns:
        The joined field; None if it is None in all of the neighbors.
    """
    own: list[Tensor | None] = [getattr(one, name) for one in parts]
    if all(one is None for one in own):
        return None
    return torch.cat(
        [
            torch.zeros_like(part.distances) if one is None else one
            for part, one in zip(parts, own, strict=True)
        ],
        dim,
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
    """The distance of each row's nearest neighbor.

    Returns:
        float32 [rows]: the smallest squared distance ("l2") or the largest similarity ("ip",
        "cosine"). A row without neighbors has the distance of padding.
    """
    distances = neighbors.distances
    if distances.shape[-1] == 0:
        far = torch.inf if metric == "l2" else -torch.inf
        return distances.new_full((neighbors.rows,), far)
    return distances.amin(-1) if metric == "l2" else distances.amax(-1)


def are_near(neighbors: Neighbors, metric: Metric, limit: float) -> Tensor:
    """Whether each row's nearest neighbor is as near as a limit, bool [rows]."""
    nearest = nearest_distance(neighbors, metric)
    return nearest <= limit if metric == "l2" else nearest >= limit


# How many of the nearest entries decide whether a datastore knows what follows.
NEAREST = 64


def hits(neighbors: Neighbors, tokens: Tensor, metric: Metric) -> Tensor:
    """Whether one of the nearest entries of each query has the token that follows the query.

    Text that resembles a datastore's text has many such hits, and other text has few. The share
    of hits tells the two apart better than distances do (LOG.md).

    Args:
        neighbors: The neighbors of `rows` queries.
        tokens: int64 [rows], the tokens that follow the queries.
        metric: Metric of the distances.

    Returns:
        bool [rows].
    """
    same = (neighbors.values == tokens.to(neighbors.values.device).unsqueeze(-1)) & neighbors.mask
    if neighbors.k > NEAREST:
        order = neighbors.distances.topk(NEAREST, dim=-1, largest=metric != "l2").indices
        same = same.gather(-1, order)
    return same.any(dim=-1)


def powers_up_to(k: int, first: int = 1) -> tuple[int, ...]:
    """Returns first, 2 first, 4 first and so on up to k, and k itself."""
    found = []
    while first < k:
        found.append(first)
        first *= 2
    return (*found, k)
