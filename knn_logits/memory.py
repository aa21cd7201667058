"""`Memory`: a model with its datastores, opened and checked once, and asked as often as one likes.

Everything that answers is given one: the processor in `generate()`, `explain`, `evaluate`, `tune`,
the page. Each asks under settings of its own; the indexes stay open between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from knn_logits.capture.forward import input_device
from knn_logits.combined import Stores, open_retriever, open_stores
from knn_logits.compatibility import check_model, locate_key
from knn_logits.config import KNNConfig, Metric, SearchSettings, check_threads
from knn_logits.datastore.store import Datastore
from knn_logits.distribution import drop_impossible, second_vote
from knn_logits.errors import ConfigError
from knn_logits.gating.gate import Gate, rows_to_search, weigh_rows
from knn_logits.infini_gram import InfiniGram, without_padding
from knn_logits.neighbors import NEAREST, Neighbors, hits, with_occurrences
from knn_logits.occurrences import Prefixes
from knn_logits.opening import Indexes
from knn_logits.settings import scoring_settings, writing_settings
from knn_logits.vote import Vote


class MixtureSettings(SearchSettings, total=False):
    """What a memory is asked under; see `Memory` for the meaning."""

    weights: Sequence[float] | None
    k: int | None
    lmbda: float | Gate | None
    temperature: float | None


class MemorySettings(MixtureSettings, total=False):
    """How a memory is opened, and what it is asked under; see `Memory` for the meaning."""

    key: str | None
    device: torch.device | str | None
    threads: int | None
    native_index: bool
    check: bool


_OPENING = ("key", "device", "threads", "native_index", "check")


class Memory:
    """A model with one or several datastores, opened and checked once. Safe for threads.

        memory = Memory(model, store)
        with KNNLogitsProcessor(model, memory) as knn:
            ...
        explain(model, tokenizer, memory, text)

    Settings that are given here hold wherever the memory is asked. For the others a datastore has
    two sets of its own: those for scoring, and those for writing.

    Args:
        model: A causal or encoder-decoder language model of transformers.
        datastore: A datastore, or its folder; or several, searched as one. Each must have been
            built by this model.
        scoring: Whether texts are scored under it; otherwise texts are written.
        key: Where the key is; None takes the datastore's. Another one is refused.
        device: Where to search; None searches on the model's device where the index can.
        threads: OpenMP threads for searches; None takes one for small batches.
        native_index: Read an index in FAISS's own format, which cannot be checked: for datastores
            whose publisher is trusted.
        check: Compute the keys of a short text and compare them with the datastore's.
        weights: Share of each of several datastores in the vote; None merges by distance.
        k: Neighbors a query; None takes the datastore's setting, as for the next two.
        lmbda: Weight of the neighbors: a number in [0, 1], or a gate that decides at each token.
            None takes the datastore's gate if it has one; text is written with its number.
        temperature: Of the softmax over the neighbors, above 0.
        settings: `refine`, `nprobe`, `retomaton`, `min_knns`, `max_knns`, `pointer_distances`,
            `exclude`, `infini_gram`: how neighbors are found; see `KNNConfig`.

    Attributes:
        model: The model.
        location: Where the key is.
        stores: The datastores.
        scoring: Whether texts are scored under it.
        config: The numbers among its settings.
        gate: What decides on λ in place of their number; None for the number.
        retriever: Searches the datastores.
        infini_gram: Finds the end of a text in them word for word; None where it takes no part.

    Raises:
        ConfigError: when a setting is out of its range, or a gate was fitted for another metric.
        MismatchError: when a datastore was built by another model.
        ModelError: when the model has no place for the key.
        DatastoreError: when a folder is no datastore.
    """

    def __init__(
        self,
        model: nn.Module,
        datastore: Stores,
        *,
        scoring: bool = False,
        key: str | None = None,
        device: torch.device | str | None = None,
        threads: int | None = None,
        native_index: bool = False,
        check: bool = True,
        **settings: Unpack[MixtureSettings],
    ) -> None:
        check_threads(threads)
        self.model = model
        self.stores = open_stores(datastore)
        # What is asked for is refused before the model computes anything.
        _resolved(self.stores, scoring, settings)
        self.location = locate_key(model, self.stores[0], key)
        if check:
            for store in self.stores:
                check_model(model, store, self.location)
        if device is None:
            device = input_device(model.get_submodule(self.location.module))
            device = device if device.type == "cuda" else "cpu"
        self._indexes = Indexes(device, threads, native=native_index)
        self._ask_under(scoring, settings)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        datastore: Memory | Stores,
        *,
        scoring: bool = False,
        **settings: Unpack[MemorySettings],
    ) -> Memory:
        """A memory of datastores; or one that is open already, under the settings that are given.

        Args:
            model: The model; the memory's own.
            datastore: A memory, or what one is opened from.
            scoring: Whether texts are scored under it.
            settings: See `Memory`; of a memory that is open, those of the mixture only.

        Raises:
            ConfigError: when the memory is another model's, or is to be opened in another way.
        """
        if not isinstance(datastore, Memory):
            return cls(model, datastore, scoring=scoring, **settings)
        if datastore.model is not model:
            raise ConfigError("this memory is another model's: give the model it was opened with")
        given: dict[str, Any] = dict(settings)
        for name in _OPENING:
            if given.pop(name, None) not in (None, name == "check"):
                raise ConfigError(f"the memory is open already: give {name} where it is opened")
        return datastore.asked(scoring=scoring, **given)

    def asked(self, *, scoring: bool, **settings: Unpack[MixtureSettings]) -> Memory:
        """The same memory, asked for another purpose or under other settings.

        Args:
            scoring: Whether texts are scored under it; otherwise texts are written.
            settings: Those that change; None leaves one as it is.
        """
        return self._sibling(self.stores, scoring, settings)

    def over(self, datastore: Stores, **settings: Unpack[MixtureSettings]) -> Memory:
        """The same model with other datastores; indexes that are open stay so.

        Args:
            datastore: Datastores that were checked against the model before.
            settings: Those that change; None leaves one as it is.
        """
        return self._sibling(open_stores(datastore), self.scoring, settings)

    def _sibling(self, stores: list[Datastore], scoring: bool, settings: MixtureSettings) -> Memory:
        changed = {name: value for name, value in settings.items() if value is not None}
        other = object.__new__(Memory)
        other.model, other.stores, other.location = self.model, stores, self.location
        other._indexes = self._indexes
        other._ask_under(scoring, {**self._given, **changed})  # type: ignore[typeddict-item]
        return other

    def _ask_under(self, scoring: bool, settings: MixtureSettings) -> None:
        self.scoring = scoring
        self._given = settings
        self.config, self.gate = _resolved(self.stores, scoring, settings)
        self.retriever = open_retriever(
            self.stores, self.config, weights=settings.get("weights"), indexes=self._indexes
        )
        self.infini_gram: InfiniGram | None = None
        # A share of 0 asks for none, also of a datastore that has no index for it.
        if self.config.infini_gram:
            self.infini_gram = InfiniGram(self.stores, self.config, self._indexes)

    def neighbors(self, states: Tensor, ids: Tensor, log_p_lm: Tensor | None = None) -> Neighbors:
        """The neighbors of one step, or of several in a row, of a batch of texts.

        Args:
            states: [rows, positions, dim], the states at the last positions of the texts.
            ids: int64 [rows, length], the texts up to the last of those positions.
            log_p_lm: [rows * positions, vocabulary], all rows of a position after another, for a
                gate that leaves rows out; None searches for all.

        Returns:
            Neighbors of `rows * positions` queries, all rows of a position after another.
        """
        wanted = None if log_p_lm is None else rows_to_search(self.gate, log_p_lm)
        if wanted is not None:
            wanted = wanted.reshape(states.shape[1], states.shape[0]).T
        found = self.retriever.search_steps(states, ids, wanted)
        if self.infini_gram is None:
            return found
        texts = without_padding(ids, getattr(self.model, "generation_config", None))
        more = self.infini_gram.find(Prefixes.of_steps(texts, states.shape[1]))
        return replace(found, occurrences=more.to(found.ids.device))

    def vote(self, neighbors: Neighbors, log_p_lm: Tensor) -> Vote:
        """What neighbors say about the next token.

        A token that the model was forbidden to choose gets no vote; see `drop_impossible`.

        Args:
            neighbors: Of `rows` queries.
            log_p_lm: The model's log-probabilities, float32 [rows, vocabulary].
        """
        neighbors = neighbors.to(log_p_lm.device)
        weights = self.retriever.log_weights(neighbors)
        lmbda: float | Tensor = self.config.lmbda
        if self.gate is not None:
            lmbda, weights = weigh_rows(
                self.gate, neighbors, weights, self.retriever.metric, log_p_lm
            )
        votes = drop_impossible(weights, neighbors.values, log_p_lm)
        every_row = neighbors.every_row and votes is weights
        more = neighbors.occurrences
        if more is not None:
            others = drop_impossible(more.log_weights, more.values, log_p_lm)
            votes, lmbda = second_vote(votes, lmbda, others, more.shares)
            neighbors, every_row = with_occurrences(neighbors, self.retriever.metric), False
        return Vote(
            neighbors, votes, lmbda, log_p_lm, every_row=every_row, near_within=self.near_within
        )

    @cached_property
    def near_within(self) -> tuple[Metric, float] | None:
        """The metric, and the distance within which a neighbor is as near as the datastores' own.

        None where a datastore does not say what is near.
        """
        records = [store.manifest.near for store in self.stores]
        known = [one.distance for one in records if one is not None]
        if len(known) < len(records):
            return None
        metric = self.retriever.metric
        return metric, max(known) if metric == "l2" else min(known)

    @property
    def expected_hits(self) -> float | None:
        """How often text like the datastores' has a hit in them; None where that is not known."""
        known = [store.manifest.near for store in self.stores]
        return min((one.hits for one in known if one), default=None) if all(known) else None

    def hits(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Whether one of the entries nearest to each state has the token that follows; a search.

        Args:
            states: [rows, dim].
            tokens: int64 [rows].

        Returns:
            bool [rows], on the CPU.
        """
        plain = self.asked(
            scoring=self.scoring, k=NEAREST, retomaton=False, refine=False, infini_gram=0.0
        )
        return hits(plain.retriever.search(states), tokens, self.retriever.metric).cpu()


def _resolved(
    stores: Sequence[Datastore], scoring: bool, settings: MixtureSettings
) -> tuple[KNNConfig, Gate | None]:
    """The numbers and the gate that hold; see `knn_logits.settings`."""
    given = {name: value for name, value in settings.items() if name != "weights"}
    choose = scoring_settings if scoring else writing_settings
    return choose(stores[0], **given)  # type: ignore[arg-type]
