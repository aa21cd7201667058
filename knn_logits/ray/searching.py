"""Searches an index whose shards, ranges of its entries, are on the machines of a Ray cluster."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, UnreachableError
from knn_logits.index.base import Index
from knn_logits.index.opening import Indexes
from knn_logits.metrics import Metric
from knn_logits.ray.connection import connect, machines, result_of
from knn_logits.ray.shard import Neighborhood, Shard
from knn_logits.settings.config import KNNConfig, whole_number
from knn_logits.store.datastore import Datastore

# Number of seconds in which a shard has to answer; it may have to be opened again meanwhile.
_PATIENCE = 60.0
# The first opening on a machine reads every byte of the datastore once, which may take an hour.
_OPENING = 6 * 3600.0
# Waits a number of seconds for an answer. It raises a TimeoutError while there is none yet, and an
# UnreachableError where none will come.
Answer = Callable[[float], Any]


class RayIndexes(Indexes):
    """Opens the indexes of datastores on the machines of a Ray cluster.

    Args:
        address: The cluster's address: "auto", host:port, or "local".
        shards: Number of shards of each datastore; None takes one for each machine.

    Raises:
        MissingDependencyError: when Ray is not installed.
        UnreachableError: when there is no cluster at the address.
        ConfigError: when the number of shards is not a whole number of at least 1.
    """

    def __init__(self, address: str, *, shards: int | None = None) -> None:
        super().__init__()
        if shards is not None:
            whole_number("shards", shards, 1)
        self._ray = connect(address)
        self._machines = sorted(machines(self._ray), key=lambda machine: str(machine["NodeID"]))
        self._shards = shards or max(1, len(self._machines))
        self._started: list[Any] = []

    def close(self) -> None:
        """Ends all shards, so that the machines have their memory back."""
        for actor in self._started:
            with suppress(Exception):
                self._ray.kill(actor)
        self._started.clear()

    def open(self, store: Datastore, config: KNNConfig) -> Index:
        """See `Indexes.open`. All settings share the shards of a datastore.

        Raises:
            ConfigError: when `exclude` names documents.
            UnreachableError: when the cluster has no room for the shards.
        """
        if config.exclude:
            raise ConfigError("a cluster's index cannot leave out documents: remove --without")
        spans = ranges(len(store), self._shards)
        actors = self.once(store, "shards", lambda: self._start(store, spans))
        name = ("sharded", config.nprobe)
        return self.once(store, name, lambda: self._open(store, spans, actors))

    def _open(
        self, store: Datastore, spans: list[tuple[int, int]], actors: list[Any]
    ) -> ShardedIndex:
        def ask(number: int, method: str, *arguments: Any) -> Answer:
            ref = getattr(actors[number], method).remote(*arguments)
            return lambda seconds: result_of(self._ray, ref, seconds)

        manifest = store.manifest
        index = ShardedIndex(ask, spans, manifest.dim, manifest.metric)
        index.nprobe, index.actors = manifest.index.nprobe, actors
        # These calls wait until an actor that was lost has started again.
        opened = [actor.ready.options(max_task_retries=-1).remote() for actor in actors]
        for number, ref in enumerate(opened):
            try:
                result_of(self._ray, ref, _OPENING)
            except (TimeoutError, UnreachableError):
                raise index.unreachable(number) from None
        return index

    def _start(self, store: Datastore, spans: Sequence[tuple[int, int]]) -> list[Any]:
        name = str(store.folder.resolve())
        if store.revision is not None:
            name = f"{store.name}@{store.revision}"
        cpus = sum(int(machine["Resources"]["CPU"]) for machine in self._machines)
        # An actor whose machine is lost is started and asked again on a different machine.
        kind = self._ray.remote(
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy="SPREAD",
            num_cpus=share_of_a_cpu(cpus, len(spans)),
        )(Shard)
        actors = [kind.remote(name, store.manifest.checksum, *span) for span in spans]
        self._started += actors
        return actors


def share_of_a_cpu(cpus: int, actors: int) -> float:
    """The part of a CPU that an actor takes, so that all actors have room."""
    # Ray counts in ten-thousandths of a CPU.
    return int(10_000 / max(1, -(-actors // max(1, cpus)))) / 10_000


def ranges(entries: int, shards: int) -> list[tuple[int, int]]:
    """Cuts entries into at most `shards` ranges of nearly equal length, none of which is empty."""
    shards = max(1, min(shards, entries))
    ends = [entries * number // shards for number in range(shards + 1)]
    return list(itertools.pairwise(ends))


def merged(parts: Sequence[Neighborhood], k: int) -> Neighborhood:
    """Selects the k nearest entries of all shards, nearest first, then by id, padding last."""
    nearness, ids = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    nearness = np.where(ids < 0, np.float32(-np.inf), nearness)
    order = np.lexsort((ids, -nearness), axis=1)[:, :k]
    return np.take_along_axis(nearness, order, axis=1), np.take_along_axis(ids, order, axis=1)


class ShardedIndex:
    """An index whose shards answer from elsewhere. It follows the protocol of `Index`."""

    def __init__(
        self,
        ask: Callable[..., Answer],  # the shard's number, the name of a method, its arguments
        spans: list[tuple[int, int]],
        dim: int,
        metric: Metric,
    ) -> None:
        self.metric: Metric = metric
        self.dim = dim
        self.size = spans[-1][1]
        self.nprobe: int | None = None
        self.actors: list[Any] = []
        self._ask, self._spans = ask, spans

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Searches as `Index.search` says. Neighbors are sorted, with the nearest first."""
        array = np.ascontiguousarray(queries.detach().cpu().numpy(), np.float32)
        k = min(k, self.size)
        numbers = range(len(self._spans))
        answers = [self._ask(number, "search", array, k, self.nprobe) for number in numbers]
        until = time.monotonic() + _PATIENCE
        parts = []
        for number, answer in enumerate(answers):
            try:
                parts.append(answer(max(0.0, until - time.monotonic())))
            except (TimeoutError, UnreachableError):
                raise self.unreachable(number) from None
        nearness, ids = merged(parts, k)
        return torch.from_numpy(nearness), torch.from_numpy(ids)

    def unreachable(self, number: int) -> UnreachableError:
        first, last = self._spans[number]
        return UnreachableError(
            f"shard {number} of {len(self._spans)}, the entries {first:,} to {last - 1:,}, does "
            "not respond: check `ray status` and run the command again"
        )

    def remove(self, ids: Array) -> None:
        """Not possible: removed documents are left out as a shard is opened."""
        raise ConfigError(f"{len(ids)} entries cannot be removed from a sharded index")
