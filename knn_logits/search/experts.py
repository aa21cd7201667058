"""The voters on the next token: registries of retrievers, and of experts beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from knn_logits.engine.keys import KeySource
from knn_logits.index.opening import Indexes
from knn_logits.search.infini_gram import InfiniGram
from knn_logits.search.occurrences import Occurrences, Prefixes
from knn_logits.search.on_demand import OnDemandRetriever
from knn_logits.search.retomaton import RetomatonRetriever
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore


class Finder(Protocol):
    """Reads the text, and finds entries that vote beside the neighbors."""

    def find(self, prefixes: Prefixes) -> Occurrences:
        """The votes after each text; entries are numbered through all datastores, -1 is none."""
        ...


class Expert(Finder, Protocol):
    """A finder whose votes have a share that the settings give."""

    @classmethod
    def opened(
        cls, stores: Sequence[Datastore], config: KNNConfig, indexes: Indexes
    ) -> Expert | None:
        """The expert of some datastores; None where the settings do not ask for it."""
        ...


# The first that serves a datastore under the settings is taken.
RETRIEVERS: tuple[type[Retriever], ...] = (OnDemandRetriever, RetomatonRetriever, Retriever)
# Each has its share of what those before it leave.
EXPERTS: tuple[type[Expert], ...] = (InfiniGram,)


def retriever_of(
    store: Datastore, config: KNNConfig, indexes: Indexes, source: KeySource | None
) -> Retriever:
    """Opens the retriever of a datastore."""
    kind = next(kind for kind in RETRIEVERS if kind.serves(store, config))
    return kind.opened(store, config, indexes, source)


def open_experts(
    stores: Sequence[Datastore], config: KNNConfig, indexes: Indexes
) -> tuple[Expert, ...]:
    """Opens the experts that the settings ask for."""
    experts = [kind.opened(stores, config, indexes) for kind in EXPERTS]
    return tuple(expert for expert in experts if expert is not None)
