"""Searches an index whose shards, ranges of its entries, are on the machines of a Ray cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from knn_logits.errors import UnreachableError
from knn_logits.index.base import Index
from knn_logits.index.opening import Indexes, check_probe
from knn_logits.ray.connection import connect, machines, result_of
from knn_logits.ray.shard import Form, ShardActor
from knn_logits.ray.sharded import PATIENCE, Answer, ShardedIndex, ranges
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
        patience: Seconds that a shard has to answer.

    Raises:
        MissingDependencyError: when Ray is not installed.
        UnreachableError: when there is no cluster at the address.
        ConfigError: when the number of shards is not a whole number of at least 1.
    """

    def __init__(
        self,
        address: str,
        *,
        shards: int | None = None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__()
        if shards is not None:
            whole_number("shards", shards, 1)
        self._ray = connect(address)
        self._machines = sorted(machines(self._ray), key=lambda machine: str(machine["NodeID"]))
        self._shards = shards or max(1, len(self._machines))
        self._patience = patience
        # The actor of each shard. All forms of a datastore's index share them.
        self._actors: WeakKeyDictionary[Datastore, list[Any]] = WeakKeyDictionary()
        self._started: list[Any] = []

    def close(self) -> None:
        """Ends all shards, so that the machines have their memory back."""
        for actor in self._started:
            with suppress(Exception):
                self._ray.kill(actor)
        self._started.clear()

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

        def ask(number: int, method: str, *arguments: Any) -> Answer:
            ref = actors[number].call.remote(form, method, *arguments)
            return lambda seconds: result_of(self._ray, ref, seconds)

        def opened(actor: Any) -> Any:
            # This call waits until an actor that was lost has started again.
            return actor.ready.options(max_task_retries=-1).remote(form)

        index = ShardedIndex(
            ask,
            spans,
            store.manifest.dim,
            store.manifest.metric,
            patience=self._patience,
        )
        self._wait_for([opened(actor) for actor in actors], index)
        if form == ((), None) and not len(store.removed_entries):
            check_probe(store, index)
        index.nprobe = form[1] or store.manifest.index.nprobe
        index.actors = actors
        return index

    def _start(self, store: Datastore, spans: Sequence[tuple[int, int]]) -> list[Any]:
        """Starts the actors of a datastore's shards."""
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
        )(ShardActor)
        actors = [kind.remote(name, store.manifest.checksum, *span) for span in spans]
        self._started += actors
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
                raise index.unreachable(number) from None


def share_of_a_cpu(cpus: int, actors: int) -> float:
    """The part of a CPU that an actor takes, so that all actors have room."""
    # Ray counts in ten-thousandths of a CPU.
    return int(10_000 / max(1, -(-actors // max(1, cpus)))) / 10_000
