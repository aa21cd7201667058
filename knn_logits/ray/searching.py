"""Searches an index whose shards, ranges of its entries, are on the machines of a Ray cluster."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from knn_logits.errors import UnreachableError
from knn_logits.index.base import Index
from knn_logits.index.opening import Indexes, check_probe
from knn_logits.ray.connection import connect, machines, on_machine, result_of
from knn_logits.ray.shard import Form, ShardActor
from knn_logits.ray.sharded import PATIENCE, Answer, Replicas, ShardedIndex, ranges
from knn_logits.settings.config import KNNConfig, whole_number
from knn_logits.store.datastore import Datastore

logger = logging.getLogger(__name__)

# The first opening on a machine reads every byte of the datastore once, which may take an hour.
_OPENING, _REPORT_EACH = 6 * 3600.0, 60.0


class RayIndexes(Indexes):
    """Opens the indexes of datastores on the machines of a Ray cluster.

    Args:
        address: The cluster's address: "auto", host:port, or "local".
        shards: Number of shards of each datastore; None takes one for each machine.
        replicas: Number of actors that hold the same shard, each on another machine. Where one is
            lost, another one answers.
        partial: Whether shards that do not answer are left out of an answer.
        patience: Seconds that a shard has to answer.

    Raises:
        MissingDependencyError: when Ray is not installed.
        UnreachableError: when there is no cluster at the address.
        ConfigError: when the number of shards or replicas is not a whole number of at least 1.
    """

    def __init__(
        self,
        address: str,
        *,
        shards: int | None = None,
        replicas: int = 1,
        partial: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__()
        if shards is not None:
            whole_number("shards", shards, 1)
        whole_number("replicas", replicas, 1)
        self._ray = connect(address)
        self._machines = sorted(machines(self._ray), key=lambda machine: str(machine["NodeID"]))
        self._shards = shards or max(1, len(self._machines))
        self._replicas = replicas
        self._partial, self._patience = partial, patience
        # The actors of each shard's replicas. All forms of a datastore's index share them.
        self._actors: WeakKeyDictionary[Datastore, list[list[Any]]] = WeakKeyDictionary()
        self._started: list[Any] = []
        self._opened: list[ShardedIndex] = []
        if replicas > max(1, len(self._machines)):
            logger.warning(
                "the cluster has fewer machines than replicas per shard: losing one machine "
                "loses %d of %d replicas",
                -(-replicas // max(1, len(self._machines))),
                replicas,
            )

    def close(self) -> None:
        """Ends all shards, so that the machines have their memory back."""
        for actor in self._started:
            with suppress(Exception):
                self._ray.kill(actor)
        self._started.clear()

    @property
    def partial_answers(self) -> int:
        """Number of searches that lacked a shard."""
        return sum(index.partial_answers for index in self._opened)

    def open(self, store: Datastore, config: KNNConfig) -> Index:
        """See `Indexes.open`.

        Raises:
            UnreachableError: when the cluster has no room for the shards.
        """
        return self.once(
            store,
            ("sharded", config.exclude, config.nprobe),
            lambda: self._open(store, (config.exclude, config.nprobe)),
        )

    def _open(self, store: Datastore, form: Form) -> ShardedIndex:
        spans = ranges(len(store), self._shards)
        if store not in self._actors:
            self._actors[store] = self._start(store, spans)
        actors = self._actors[store]

        def ask(number: int, replica: int, method: str, *arguments: Any) -> Answer:
            ref = actors[number][replica].call.remote(form, method, *arguments)
            return lambda seconds: result_of(self._ray, ref, seconds)

        def opened(actor: Any) -> Any:
            # This call waits until an actor that was lost has started again.
            return actor.ready.options(max_task_retries=-1).remote(form)

        def back(number: int, replica: int) -> Answer:
            ref = opened(actors[number][replica])
            return lambda seconds: result_of(self._ray, ref, seconds)

        replicas = Replicas(ask, back, self._replicas)
        index = ShardedIndex(
            replicas.ask if self._replicas > 1 else lambda number, *call: ask(number, 0, *call),
            spans,
            store.manifest.dim,
            store.manifest.metric,
            partial=self._partial,
            patience=self._patience,
        )
        self._wait_for([opened(actor) for actor in itertools.chain(*actors)], index)
        if form == ((), None) and not len(store.removed_entries):
            check_probe(store, index)
        index.nprobe = form[1] or store.manifest.index.nprobe
        index.actors = actors
        self._opened.append(index)
        return index

    def _start(self, store: Datastore, spans: Sequence[tuple[int, int]]) -> list[list[Any]]:
        """Starts the actors of a datastore's shards: the replicas of each."""
        name = str(store.folder.resolve())
        if store.revision is not None:
            name = f"{store.name}@{store.revision}"
        # An actor whose machine is lost starts again on another one, and is asked again. Where
        # there are replicas, another one is asked at once.
        kind = self._ray.remote(
            max_restarts=-1,
            max_task_retries=-1 if self._replicas == 1 else 0,
            scheduling_strategy="SPREAD",
        )(ShardActor)
        cpus = [int(machine["Resources"]["CPU"]) for machine in self._machines] or [1]
        # The replicas of a shard are on different machines.
        places = [
            [(number + replica) % len(cpus) for replica in range(self._replicas)]
            for number in range(len(spans))
        ]
        share = share_of_a_cpu([sum(cpus)], [len(spans)])
        if self._replicas > 1:
            counts = Counter(itertools.chain.from_iterable(places))
            share = share_of_a_cpu(cpus, [counts[number] for number in range(len(cpus))])
        actors: list[list[Any]] = [[] for _ in spans]
        for number, span in enumerate(spans):
            for place in places[number]:
                options: dict[str, Any] = {"num_cpus": share}
                if self._replicas > 1 and self._machines:
                    options["scheduling_strategy"] = on_machine(self._machines[place])
                actor = kind.options(**options).remote(name, store.manifest.checksum, *span)
                actors[number].append(actor)
                self._started.append(actor)
        return actors

    def _wait_for(self, refs: list[Any], index: ShardedIndex) -> None:
        """Waits until all shards are open, and reports where that takes long."""
        until = time.monotonic() + _OPENING
        left = list(refs)
        while left and time.monotonic() < until:
            _, left = self._ray.wait(left, num_returns=len(left), timeout=_REPORT_EACH)
            if left:
                logger.warning(
                    "%d of %d shards are not open yet: they are being read, or wait for a free "
                    "CPU (see `ray status`)",
                    len(left),
                    len(refs),
                )
        for number, ref in enumerate(refs):
            try:
                result_of(self._ray, ref, 0.0 if ref in left else self._patience)
            except (TimeoutError, UnreachableError):
                raise index.unreachable(number // self._replicas) from None


def share_of_a_cpu(cpus: Sequence[int], actors: Sequence[int]) -> float:
    """The part of a CPU that an actor takes, so that all actors of each place have room."""
    together = max(-(-count // max(1, cpu)) for cpu, count in zip(cpus, actors, strict=True))
    # Ray counts in ten-thousandths of a CPU.
    return int(10_000 / max(1, together)) / 10_000
