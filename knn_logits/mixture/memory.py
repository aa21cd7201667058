"""`Memory` is a model with its datastores, which are opened and checked once and asked many times.

Everything that answers takes a `Memory`: the processor in `generate()`, `explain`, `evaluate`,
`tune` and the page. Each uses its own settings, and the indexes stay open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from knn_logits.engine.compatibility import check_model, vocabulary_size
from knn_logits.engine.forward import input_device
from knn_logits.engine.location import find_key
from knn_logits.engine.tokens import control_tokens, end_tokens
from knn_logits.engine.windows import window_keys
from knn_logits.errors import ConfigError
from knn_logits.index.opening import Indexes
from knn_logits.locks import cached_property
from knn_logits.mixture.gates.adaptive import MAX_OCCURRENCES, AdaptiveGate, GatedStore, gated_vote
from knn_logits.mixture.gates.gate import Gate, weigh_rows
from knn_logits.mixture.presets import MemorySettings, MixtureSettings, resolve
from knn_logits.mixture.step_graphs import StepGraphs, can_replay
from knn_logits.mixture.vote import Vote, Weighing, drop_impossible, second_vote
from knn_logits.search.combined import Stores, distinct_names, names_of, open_retriever, open_stores
from knn_logits.search.matches import InfiniGram, Matches
from knn_logits.search.neighbors import Neighbors, Occurrences, Prefixes, with_occurrences
from knn_logits.search.retriever import MAX_SHARED_TOKENS, Retriever
from knn_logits.settings.config import KNNConfig, check_threads
from knn_logits.store.datastore import Datastore

_T = TypeVar("_T")
# Maximum number of distances of a step that is replayed as a graph, which keeps its memory.
_MAX_DISTANCES = 64 << 20
_OPENING = ("device", "threads", "check", "indexes")


class Memory:
    """A model with one or several datastores, opened and checked once. It is safe for threads.

        memory = Memory(model, store)
        with KNNLogitsProcessor(model, memory) as knn:
            ...
        explain(model, tokenizer, memory, text)

    Settings that are given here hold wherever the memory is asked. Every other setting is the
    datastore's.

    Args:
        model: A causal or encoder-decoder language model of transformers.
        datastore: One or several datastores or their folders. Several are searched as one. This
            model must have built each of them. The keys of a mapping are their names in a trace.
        device: The device to search on. None takes the model's device if the index supports it.
        threads: OpenMP threads for searches; None takes one for small batches.
        check: Compute the keys of a short text and compare them with the datastore's.
        indexes: Opens the datastores' indexes, such as one that is spread over machines; None
            opens them in this process, on `device` and with `threads`.
        preset: "paper" is the papers' kNN-LM with the datastore's k, λ and temperature, without
            its gate. None and "default" take the datastore's settings with its gate.
        k: Neighbors of each query; None takes the datastore's setting.
        lmbda: Weight of the neighbors: a number in [0, 1], or a gate that decides at each token.
            None takes the datastore's gate, or its number if it has no gate.
        temperature: Temperature of the softmax over the neighbors, above 0; None takes the
            datastore's setting.
        settings: The other settings of `KNNConfig`, which say how neighbors are found.

    Attributes:
        model: The model.
        location: The place of the key in the model.
        stores: The datastores.
        config: The settings that are numbers, of the first datastore if gates decide on λ.
        gate: The gate that decides on λ, for the first datastore if each has one; None if λ is the
            number in `config`.
        retriever: The retriever that searches the datastores.
        weighing: How the features of neighbors become weights.
        experts: What votes beside the neighbors, such as the ∞-gram.

    Raises:
        ConfigError: when a setting is out of its range, or a gate was fitted for another metric.
        MismatchError: when a datastore was built by another model.
        ModelError: when the model has no place for the key.
        DatastoreError: when a folder is not a datastore.
    """

    def __init__(
        self,
        model: nn.Module,
        datastore: Stores,
        *,
        device: torch.device | str | None = None,
        threads: int | None = None,
        check: bool = True,
        indexes: Indexes | None = None,
        **settings: Unpack[MixtureSettings],
    ) -> None:
        check_threads(threads)
        self.model = model
        self.stores, self._store_names = open_stores(datastore), names_of(datastore)
        # Wrong settings are refused before the model computes anything.
        resolve(self.stores, settings)
        self.location = find_key(model, self.stores[0].manifest.key.name)
        if check:
            for store in self.stores:
                check_model(model, store, self.location)
        if device is None:
            device = input_device(model.get_submodule(self.location.module))
            device = device if device.type == "cuda" else "cpu"
        if indexes is not None and not isinstance(indexes, Indexes):
            raise ConfigError(f"indexes must be an Indexes or None, not {type(indexes).__name__}")
        self._indexes = indexes or Indexes(device, threads)
        self._ask_under(settings)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Memory or KNNLogitsProcessor is tied to its model and cannot be copied or "
            "pickled; create a new one from the copied model and the same datastore"
        )

    @classmethod
    def of(
        cls, model: nn.Module, datastore: Memory | Stores, **settings: Unpack[MemorySettings]
    ) -> Memory:
        """Opens a memory of datastores, or takes an open memory with other settings.

        Args:
            model: The model. It must be the model of an open memory.
            datastore: An open memory, or datastores to open one from.
            settings: The settings that `Memory` explains. For an open memory only those of
                `MixtureSettings` are allowed.

        Raises:
            ConfigError: when the memory has another model, or a setting is given that only counts
                when a memory is opened.
        """
        if not isinstance(datastore, Memory):
            return cls(model, datastore, **settings)
        if datastore.model is not model:
            raise ConfigError(
                "this memory was opened with another model: pass the model it was opened with"
            )
        changes: dict[str, Any] = dict(settings)
        for name in _OPENING:
            if changes.pop(name, None) not in (None, name == "check"):
                raise ConfigError(
                    f"{name} cannot be changed on an open memory: set it when opening the memory"
                )
        return datastore.asked(**changes)

    def asked(self, **settings: Unpack[MixtureSettings]) -> Memory:
        """Returns the same memory with other settings.

        Args:
            settings: The settings that change; None leaves a setting as it is.
        """
        return self._sibling(self.stores, self._store_names, settings)

    def over(self, datastore: Stores, **settings: Unpack[MixtureSettings]) -> Memory:
        """Returns a memory of the same model with other datastores. Open indexes stay open.

        Args:
            datastore: Datastores that were checked against the model before.
            settings: The settings that change; None leaves a setting as it is.
        """
        stores, names = open_stores(datastore), names_of(datastore)
        return self._sibling(stores, names, settings)

    def _sibling(
        self, stores: list[Datastore], names: tuple[str, ...] | None, settings: MixtureSettings
    ) -> Memory:
        changed = {name: value for name, value in settings.items() if value is not None}
        other = object.__new__(Memory)
        other.model, other.stores, other.location = self.model, stores, self.location
        other._store_names = names
        other._indexes = self._indexes
        other._ask_under({**self._overrides, **changed})  # type: ignore[typeddict-item]
        return other

    def _ask_under(self, settings: MixtureSettings) -> None:
        self._overrides = settings
        rules = resolve(self.stores, settings)
        self.config, self.gate = rules[0]
        adaptive = isinstance(self.gate, AdaptiveGate)
        self.retriever: Retriever = open_retriever(
            self.stores,
            self.config,
            apart=[config for config, _ in rules] if adaptive else None,
            indexes=self._indexes,
            source=partial(window_keys, self.model, self.location),
        )
        self.weighing = Weighing.of(self.config)
        self._gated = tuple(self._gates(rules)) if adaptive else ()
        if self._gated:
            self.gate = self._gated[0].gate
        self.experts: tuple[Matches | InfiniGram, ...] = tuple(part.matches for part in self._gated)
        if self.config.infini_gram:
            infini_gram = InfiniGram(self.stores, self.config, self._indexes)
            self.experts = (*self.experts, infini_gram)
        reads = self.experts or self.retriever.reads_text
        self._padding = padding_tokens(self.model) if reads else []
        # The GPU on which nothing in a step needs the host, so that steps are replayed.
        self._replay_device: torch.device | None = None
        if (self.gate is None or adaptive) and can_replay():
            device = self.retriever.device
            self._replay_device = device if device is not None and device.type == "cuda" else None

    def _gates(self, rules: Sequence[tuple[KNNConfig, Gate | None]]) -> Iterator[GatedStore]:
        vocabulary = vocabulary_size(self.model)
        control = tuple(control_tokens(self.model, vocabulary))
        defaults = getattr(self.model, "generation_config", None) or self.model.config
        for number, (config, gate) in enumerate(rules):
            assert isinstance(gate, AdaptiveGate)
            matches = Matches.of_stores(
                self.stores,
                self._indexes,
                config.exclude,
                only=number,
                most=MAX_OCCURRENCES,
                end_token=next(iter(end_tokens(defaults, vocabulary)), None),
            )
            yield GatedStore(gate.with_control(control), Weighing.of(config), matches)

    def neighbors(self, states: Tensor, ids: Tensor) -> Neighbors:
        """Finds the neighbors of one or several consecutive steps of a batch of texts.

        Args:
            states: [rows, positions, dim], the states at the last positions of the texts.
            ids: int64 [rows, length], the texts up to the last of these positions.

        Returns:
            The neighbors of `rows * positions` queries. All rows of the first position come first.
        """
        texts = Prefixes.of_steps(ids, states.shape[1], self._padding)
        queries = states.transpose(0, 1).reshape(-1, states.shape[-1])
        return self.with_occurrences(self.retriever.search(queries, texts), texts)

    def with_occurrences(self, neighbors: Neighbors, prefixes: Prefixes) -> Neighbors:
        """Adds what the experts find for the text before each query."""
        if not self.experts:
            return neighbors
        found = tuple(expert.find(prefixes) for expert in self.experts)
        return replace(neighbors, occurrences=found)

    def vote(self, neighbors: Neighbors, log_p_lm: Tensor) -> Vote:
        """Computes the neighbors' vote on the next token and the mixture.

        A token that the model is forbidden to choose gets no vote, as `drop_impossible` explains.

        Args:
            neighbors: The neighbors of `rows` queries.
            log_p_lm: The model's log-probabilities, float32 [rows, vocabulary].
        """
        neighbors = neighbors.to(log_p_lm.device)
        lmbda: float | Tensor = self.config.lmbda
        if self._gated:
            votes, lmbda = gated_vote(self._gated, neighbors, log_p_lm)
        else:
            votes = self.weighing.log_weights(neighbors)
            if self.gate is not None:
                metric = self.retriever.metric
                lmbda, votes = weigh_rows(self.gate, neighbors, votes, metric, log_p_lm)
            votes = drop_impossible(votes, neighbors.values, log_p_lm)
        for part in neighbors.occurrences[len(self._gated) :]:
            occurrence_votes = drop_impossible(part.log_weights, part.values, log_p_lm)
            votes, lmbda = second_vote(votes, lmbda, occurrence_votes, part.shares)
        if neighbors.occurrences:
            neighbors = with_occurrences(neighbors)
        return Vote(neighbors, votes, lmbda, log_p_lm)

    def step(self, state: Tensor, ids: Tensor, log_p_lm: Tensor) -> tuple[Neighbors, Vote]:
        """Searches and votes for the next token of a batch of texts.

        It does the same as `neighbors` and `vote`. On a GPU with an exact index nothing here waits
        for the device, and steps of the same shape are replayed as a CUDA graph.

        Args:
            state: [rows, dim], the states at the last positions of the texts.
            ids: int64 [rows, length], the texts, on the CPU.
            log_p_lm: The model's log-probabilities, float32 [rows, vocabulary].

        Returns:
            The neighbors, and their vote.
        """
        prefixes = Prefixes.of_steps(ids, 1, self._padding)
        on_device = state.device == log_p_lm.device == self._replay_device
        if not on_device or self.retriever.index.size * len(state) > _MAX_DISTANCES:
            neighbors = self.with_occurrences(self.retriever.search(state, prefixes), prefixes)
            return neighbors, self.vote(neighbors, log_p_lm)
        ends = prefixes.last_tokens(MAX_SHARED_TOKENS)
        near = self._searches(state.detach().float(), ends)
        # The device searches meanwhile.
        found = [expert.find(prefixes) for expert in self.experts]
        entries, nearness, values, matched, weights, lmbda, log_p = self._votes(
            log_p_lm, *near, *(part.packed() for part in found)
        )
        alone = replace(self._neighbors_of(near), occurrences=tuple(found))
        every = alone
        if found:
            every = Neighbors(entries, nearness, values, alone.metric, matched=matched)
        return alone, Vote(every, weights, lmbda, log_p_lm, log_p)

    def _neighbors_of(self, near: Sequence[Tensor]) -> Neighbors:
        """The neighbors of which a replayed search returns the fields."""
        ids, nearness, values, shared = near
        counted = shared if self.retriever.reads_text else None
        return Neighbors(ids, nearness, values, self.retriever.metric, shared=counted)

    @cached_property
    def _searches(self) -> StepGraphs:
        return StepGraphs(self._search_tensors)

    @cached_property
    def _votes(self) -> StepGraphs:
        return StepGraphs(self._vote_tensors)

    def _search_tensors(self, state: Tensor, ends: Tensor) -> list[Tensor]:
        nothing = np.zeros(len(ends), np.int64)
        found = self.retriever.search(state, Prefixes(nothing, nothing, nothing, last=ends))
        shared = found.nearness if found.shared is None else found.shared
        return [found.ids, found.nearness, found.values, shared]

    def _vote_tensors(self, log_p_lm: Tensor, *tensors: Tensor) -> list[Tensor]:
        occurrences = tuple(Occurrences.unpacked(part) for part in tensors[4:])
        neighbors = replace(self._neighbors_of(tensors[:4]), occurrences=occurrences)
        vote = self.vote(neighbors, log_p_lm)
        every = vote.neighbors
        matched = every.ids if every.matched is None else every.matched
        lmbda = torch.zeros_like(log_p_lm[:, 0]) + vote.lmbda
        found = [every.ids, every.nearness, every.values, matched]
        return [*found, vote.log_weights, lmbda, vote.log_p]

    @property
    def reads_distributions(self) -> bool:
        """Whether a vote needs the model's distribution, and not only the neighbors."""
        return self.gate is not None or bool(self.experts)

    def once(self, store: Datastore, name: object, make: Callable[[], _T]) -> _T:
        """Returns an object that belongs to a datastore. The first caller makes it."""
        return self._indexes.once(store, name, make)

    @property
    def is_off(self) -> bool:
        """Whether λ is the number 0, so that a text is the model's own."""
        return self.gate is None and not self.experts and self.config.lmbda == 0.0

    @property
    def loop_size(self) -> int | None:
        """The least number of tokens that a looping answer repeats; None does not end loops."""
        return self.stores[0].manifest.settings.no_repeat_ngram_size

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the datastores in a trace, in their order. No two of them are the same."""
        return self._store_names or tuple(distinct_names(self.stores))

    def name_of(self, store: Datastore) -> str:
        """Returns the name of one of the datastores in a trace."""
        return next(
            name for opened, name in zip(self.stores, self.names, strict=True) if opened is store
        )


def padding_tokens(model: Any) -> list[int]:
    """Returns the tokens that are padding where a text begins with them."""
    config = getattr(model, "generation_config", None)
    pad, ends = getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None)
    tokens = [pad, *(ends if isinstance(ends, list) else [ends])]
    return [token for token in tokens if token is not None]
