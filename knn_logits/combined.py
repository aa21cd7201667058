"""Several datastores searched as one: their neighbors merged by distance, or given shares."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from knn_logits.config import KNNConfig, Metric
from knn_logits.datastore.store import Datastore
from knn_logits.distribution import log_weights, shared_weights
from knn_logits.errors import ConfigError, MismatchError
from knn_logits.neighbors import Neighbors
from knn_logits.opening import Indexes
from knn_logits.retomaton import RetomatonRetriever
from knn_logits.retrieval import Retriever

OneStore: TypeAlias = "Datastore | str | os.PathLike[str]"
Stores: TypeAlias = "OneStore | Sequence[OneStore]"


def open_stores(datastores: Stores) -> list[Datastore]:
    """One datastore or several, opened where a folder or a name on the Hub is given.

    Raises:
        ConfigError: when there is none.
        MismatchError: when they cannot be searched by the same queries.
        DatastoreError: when a folder is no datastore.
        HubError: when one cannot be fetched.
    """
    single = isinstance(datastores, (Datastore, str, os.PathLike))
    given: Sequence[OneStore] = [datastores] if single else list(datastores)  # type: ignore[list-item, arg-type]
    if not given:
        raise ConfigError("no datastore was given: give one or several")
    stores = [
        one if isinstance(one, Datastore) else Datastore.from_pretrained(one) for one in given
    ]
    first = stores[0].manifest
    for store in stores[1:]:
        other = store.manifest
        for name, mine, theirs in (
            ("metric", first.metric, other.metric),
            (
                "key",
                first.key.module + ":" + first.key.side,
                other.key.module + ":" + other.key.side,
            ),
            ("length of keys", first.dim, other.dim),
            ("tokenizer", first.tokenizer.sha256[:12], other.tokenizer.sha256[:12]),
        ):
            if mine != theirs:
                raise MismatchError(
                    f"{stores[0].folder} and {store.folder} cannot be searched together: their "
                    f"{name} differs ({mine}, {theirs})"
                )
    return stores


def open_retriever(
    stores: Sequence[Datastore],
    config: KNNConfig,
    *,
    weights: Sequence[float] | None = None,
    indexes: Indexes | None = None,
) -> Retriever:
    """What searches one datastore, or several as one.

    Args:
        stores: From `open_stores`.
        config: How neighbors are found and weighed.
        weights: Share of each datastore in the vote; None merges by distance.
        indexes: Opens the indexes; None opens them on the CPU.

    Raises:
        ConfigError: when the weights do not fit the datastores, or none has a document to exclude.
    """
    if weights is not None:
        whole = len(weights) == len(stores) and all(math.isfinite(one) for one in weights)
        if not whole or min(weights) < 0 or sum(weights) <= 0:
            raise ConfigError(
                f"give {len(stores)} weights, one for each datastore, none below 0 and one above "
                f"it; not {list(weights)}"
            )
    unknown = [
        id for id in config.exclude if not any(store.documents.numbers_of(id) for store in stores)
    ]
    if unknown:
        raise ConfigError(
            f"no datastore here has a document {unknown[0]!r}: give a document's id, which a trace "
            "has under `documents` (--json on the command line)"
        )
    kind = RetomatonRetriever if config.retomaton else Retriever
    indexes = indexes or Indexes()
    opened = [kind(store, config, indexes=indexes) for store in stores]
    return opened[0] if len(opened) == 1 else CombinedRetriever(opened, weights)


class CombinedRetriever(Retriever):
    """Searches several datastores as one.

    By distance, the k nearest entries of all of them vote, as if they were one datastore. With
    weights, each datastore votes for itself with k entries, and gets its share of p_kNN; where one
    finds nothing, the others share its part.

    Args:
        retrievers: One for each datastore, with the same settings.
        weights: Share of each; None merges by distance.
    """

    def __init__(
        self, retrievers: Sequence[Retriever], weights: Sequence[float] | None = None
    ) -> None:
        self.retrievers = list(retrievers)
        first = retrievers[0]
        self.store = first.store
        self.config = first.config
        self.metric: Metric = first.metric
        total = sum(weights) if weights is not None else 1.0
        self.weights = [one / total for one in weights] if weights is not None else None
        sizes = [len(one.store) for one in retrievers]
        self._first = [0, *itertools.accumulate(sizes)]

    @property
    def follows_text(self) -> bool:
        """See `Retriever.follows_text`."""
        return any(one.follows_text for one in self.retrievers)

    def begin_text(self) -> None:
        """See `Retriever.begin_text`."""
        for one in self.retrievers:
            one.begin_text()

    @property
    def stores(self) -> list[Datastore]:
        """The datastores, in order."""
        return [one.store for one in self.retrievers]

    def locate(self, entry: int) -> tuple[Datastore, int]:
        """The datastore of an entry that a search found, and its number there."""
        number = next(
            place for place in range(len(self.retrievers)) if entry < self._first[place + 1]
        )
        return self.retrievers[number].store, entry - self._first[number]

    def search(self, queries: Tensor) -> Neighbors:
        """The neighbors of a batch of queries; ids count through all datastores.

        Args:
            queries: [rows, dim], any floating type and device.

        Returns:
            Neighbors with at most k columns by distance, k for each datastore with weights.
        """
        return self._merged([one.search(queries) for one in self.retrievers])

    def search_steps(self, states: Tensor, ids: Tensor, wanted: Tensor | None = None) -> Neighbors:
        """See `Retriever.search_steps`; each datastore follows its own pointers."""
        return self._merged([one.search_steps(states, ids, wanted) for one in self.retrievers])

    def _merged(self, found: list[Neighbors]) -> Neighbors:
        found = [one.to(found[0].ids.device) for one in found]
        widest = max(one.k for one in found)
        if self.weights is not None:
            found = [one.padded(max(1, widest), self.metric) for one in found]
        ids = [
            torch.where(one.ids >= 0, one.ids + first, one.ids)
            for one, first in zip(found, self._first, strict=False)
        ]
        merged = Neighbors(
            torch.cat(ids, dim=-1),
            torch.cat([one.distances for one in found], dim=-1),
            torch.cat([one.values for one in found], dim=-1),
            every_row=any(one.every_row for one in found),
            searched=_any_searched(found),
        )
        if self.weights is not None:
            return merged
        nearest, order = torch.topk(
            merged.distances,
            min(max(self.config.k, widest), merged.k),
            dim=-1,
            largest=self.metric != "l2",
        )
        return replace(
            merged,
            ids=merged.ids.gather(-1, order),
            distances=nearest,
            values=merged.values.gather(-1, order),
        )

    def log_weights(self, neighbors: Neighbors) -> Tensor:
        """log w_i of the neighbors that `search` found, [rows, k]."""
        if self.weights is None:
            return super().log_weights(neighbors)
        if not neighbors.k:
            return neighbors.distances
        k = neighbors.k // len(self.retrievers)
        parts = [
            log_weights(Neighbors(ids, distances, values), self.metric, self.config.temperature)
            for ids, distances, values in zip(
                neighbors.ids.split(k, dim=-1),
                neighbors.distances.split(k, dim=-1),
                neighbors.values.split(k, dim=-1),
                strict=True,
            )
        ]
        return shared_weights(parts, self.weights)


def _any_searched(found: list[Neighbors]) -> Tensor | None:
    known = [one.searched for one in found if one.searched is not None]
    return torch.stack(known).any(dim=0) if len(known) == len(found) else None
