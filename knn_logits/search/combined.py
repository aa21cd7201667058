"""Searches several datastores as one, and merges neighbors by distance or by given shares."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from knn_logits.engine.windows import KeySource
from knn_logits.errors import ConfigError, MismatchError
from knn_logits.index.opening import Indexes
from knn_logits.metrics import Metric
from knn_logits.printable import first_few
from knn_logits.search.neighbors import Neighbors, Prefixes, joined
from knn_logits.search.on_demand import OnDemandRetriever
from knn_logits.search.retomaton import RetomatonRetriever
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore

OneStore: TypeAlias = "Datastore | str | os.PathLike[str]"
# A mapping has their names in a trace.
Stores: TypeAlias = "OneStore | Sequence[OneStore] | Mapping[str, OneStore]"


def open_stores(datastores: Stores) -> list[Datastore]:
    """Opens one datastore or several. Each may be a folder, a name on the Hub, or already open."""
    if isinstance(datastores, Mapping):
        datastores = list(datastores.values())
    if isinstance(datastores, str) or not isinstance(datastores, Iterable):
        datastores = [datastores]
    stores: list[Datastore] = []
    for source in datastores:
        if isinstance(source, (str, os.PathLike)):
            stores.append(Datastore.from_pretrained(source))
        elif isinstance(source, Datastore):
            stores.append(source)
        else:
            raise ConfigError(
                f"expected a datastore, not {type(source).__name__}: pass its folder, its Hub "
                "name, or an open datastore"
            )
    if not stores:
        raise ConfigError("no datastore given: pass at least one")
    first = stores[0].manifest
    for store in stores[1:]:
        other = store.manifest
        keys = [f"{manifest.key.module}:{manifest.key.side}" for manifest in (first, other)]
        for name, mine, theirs in (
            ("metric", first.metric, other.metric),
            ("key", *keys),
            ("length of keys", first.dim, other.dim),
            ("tokenizer", first.tokenizer.sha256[:12], other.tokenizer.sha256[:12]),
        ):
            if mine != theirs:
                raise MismatchError(
                    f"{stores[0].folder} and {store.folder} cannot be searched together, since "
                    f"their {name} differs ({mine}, {theirs}): use datastores built alike"
                )
    return stores


def names_of(datastores: Stores) -> tuple[str, ...] | None:
    return tuple(datastores) if isinstance(datastores, Mapping) else None


def distinct_names(stores: Sequence[Datastore]) -> list[str]:
    """Unique names of datastores; the later ones of a name are numbered: "manuals#2"."""
    names: dict[int, str] = {}
    for store in stores:
        title, number = store.name, 2
        while id(store) not in names and title in names.values():
            title, number = f"{store.name}#{number}", number + 1
        names.setdefault(id(store), title)
    return [names[id(store)] for store in stores]


def open_retriever(
    stores: Sequence[Datastore],
    config: KNNConfig,
    *,
    apart: Sequence[KNNConfig] | None = None,
    indexes: Indexes | None = None,
    source: KeySource | None = None,
) -> Retriever:
    """Makes a retriever for one datastore, or for several as one; `presets.resolve` checks these.

    With `apart`, each datastore has settings of its own, and its own k neighbors.
    """
    indexes = indexes or Indexes()
    opened: list[Retriever] = []
    for store, own in zip(stores, apart or [config] * len(stores), strict=True):
        if store.manifest.on_demand is not None:
            opened.append(OnDemandRetriever(store, own, indexes=indexes, source=source))
        else:
            kind = RetomatonRetriever if own.retomaton else Retriever
            opened.append(kind(store, own, indexes=indexes))
    if len(opened) == 1:
        return opened[0]
    return CombinedRetriever(opened, apart=apart is not None)


def check_document(stores: Sequence[Datastore], name: str) -> None:
    """Refuses a name that no document has, or several with different ids."""
    matches = [(store, store.documents.named(name, store.manifest.removed)) for store in stores]
    ids = {
        store.documents[number].id
        for store, numbers in matches
        for number in numbers
        if number not in store.manifest.removed
    }
    if not any(numbers for _, numbers in matches):
        raise ConfigError(
            f"none of the datastores has a document with the id, title or uri {name!r}: "
            "`knn-logits info STORE --documents` lists them (a title without its page or line)"
        )
    if len(ids) > 1:
        listed = first_few([repr(name) for name in sorted(ids)])
        raise ConfigError(
            f"{len(ids)} documents have the title or uri {name!r}: use their ids instead, {listed}"
        )


class CombinedRetriever(Retriever):
    """Searches several datastores as one.

    With `apart` each datastore has k neighbors, which stand side by side in equally
    many columns; otherwise the k nearest of all datastores are the neighbors.
    """

    def __init__(self, retrievers: Sequence[Retriever], *, apart: bool = False) -> None:
        self.retrievers = list(retrievers)
        first = retrievers[0]
        self.store = first.store
        self.config = first.config
        self.metric: Metric = first.metric
        self.follows_text = any(retriever.follows_text for retriever in retrievers)
        self.reads_text = any(retriever.reads_text for retriever in retrievers)
        self._apart = apart
        sizes = [len(retriever.store) for retriever in retrievers]
        self._first = [0, *itertools.accumulate(sizes)]

    def begin_text(self) -> None:
        for retriever in self.retrievers:
            retriever.begin_text()

    @property
    def stores(self) -> list[Datastore]:
        return [retriever.store for retriever in self.retrievers]

    def locate(self, entry: int) -> tuple[Datastore, int]:
        number = next(
            place for place in range(len(self.retrievers)) if entry < self._first[place + 1]
        )
        return self.retrievers[number].store, entry - self._first[number]

    def search(self, queries: Tensor, texts: Prefixes | None = None) -> Neighbors:
        """Searches the neighbors of queries [rows, dim]. Ids count through all datastores."""
        return self._merged([retriever.search(queries, texts) for retriever in self.retrievers])

    def _merged(self, results: list[Neighbors]) -> Neighbors:
        parts = [part.to(results[0].ids.device) for part in results]
        if self._apart:
            widest = max(part.k for part in parts)
            parts = [part.padded(max(1, widest)) for part in parts]
        ids = torch.cat(
            [
                torch.where(part.mask, part.ids + first, part.ids)
                for part, first in zip(parts, self._first, strict=False)
            ],
            dim=-1,
        )
        searched = [part.searched for part in parts if part.searched is not None]
        any_searched = torch.stack(searched).any(dim=0) if len(searched) == len(parts) else None
        merged = joined(parts, -1, ids=ids, searched=any_searched)
        # All pointers vote, so that the widest row of a batch changes no other row.
        if self._apart or self.follows_text:
            return merged
        return merged.nearest(self.config.k)
