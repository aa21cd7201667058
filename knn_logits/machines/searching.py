"""Searches an index whose shards are on the machines of a Ray cluster, one actor a shard.

A shard holds the same lists as the whole index, and in them a range of the entries. It visits the
same lists for a query, so what all shards find together is what the whole index finds. Every
machine opens the datastore by itself: by its path, which must lead to the same folder everywhere,
or by its name on the Hub.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.config import KNNConfig, Metric
from knn_logits.datastore.store import Datastore
from knn_logits.errors import ConfigError, DatastoreError, KNNLogitsError, UnreachableError
from knn_logits.index.base import Index
from knn_logits.index.exact import ExactIndex
from knn_logits.machines.connection import connect, machines
from knn_logits.machines.merging import Found, merged, ranges
from knn_logits.machines.parts import part_of_index
from knn_logits.opening import Indexes, check_probe, hidden_entries, present_entries

logger = logging.getLogger(__name__)

_KEYS_AT_ONCE = 65_536
# A shard that was opened has so many seconds to answer; it may have to be opened again meanwhile.
PATIENCE = 60.0
# The first opening on a machine reads every byte of the datastore once, which may take an hour.
_OPENING, _TOLD_EVERY = 6 * 3600.0, 60.0


class Shard:
    """A range of a datastore's entries, opened on one machine.

    Args:
        name: The datastore's folder, or its name on the Hub.
        checksum: The checksum of its manifest.
        first: The first entry.
        last: The entry after the last one.
        without: Ids of documents that are left out.
        nprobe: Inverted lists visited for each query; None keeps the index's number.
    """

    def __init__(
        self,
        name: str,
        checksum: str,
        first: int,
        last: int,
        without: tuple[str, ...],
        nprobe: int | None,
    ) -> None:
        self.store = Datastore.from_pretrained(name)
        if self.store.manifest.checksum != checksum:
            raise DatastoreError(
                f"{name} is another datastore on another machine of the cluster: give a folder "
                "that all machines share, or copy it to all of them again"
            )
        self.first = first
        self.index = _opened(self.store, first, last, nprobe)
        hidden = hidden_entries(self.store, self.store.entries_of(without))
        hidden = hidden[(hidden >= first) & (hidden < last)] - first
        if len(hidden):
            self.index.remove(hidden)

    def search(self, queries: Array, k: int) -> Found:
        """Finds the nearest entries of the shard; the ids are those of the whole datastore."""
        distances, ids = self.index.search(torch.from_numpy(np.array(queries)), k)
        found = ids.numpy()
        return distances.numpy(), np.where(found < 0, found, found + self.first)

    def reconstruct(self, ids: Array) -> Array:
        """Returns the vectors of some entries of the shard, float32 [rows, dim]."""
        found: Array = self.index.reconstruct(ids - self.first).numpy()
        return found


def _opened(store: Datastore, first: int, last: int, nprobe: int | None) -> Index:
    """Opens the part of an index that holds a range of entries."""
    record, dim = store.manifest.index, store.manifest.dim
    metric: Metric = store.manifest.metric
    if record.factory == "exact":
        parts, left = [], last - first
        for batch in store.key_batches(_KEYS_AT_ONCE, first):
            parts.append(batch[:left])
            left -= len(parts[-1])
            if not left:
                break
        exact = ExactIndex.from_batches(parts, last - first, dim, metric)
        away = store.merged_away
        away = away[(away >= first) & (away < last)] - first
        if len(away):
            exact.remove(away)
        return exact
    from knn_logits.index import plain

    there = present_entries(store)
    if there is not None:
        there = there[(there >= first) & (there < last)] - first
    return plain.from_arrays(
        part_of_index(store, first, last),
        record.factory,
        dim,
        metric,
        last - first,
        there=there,
        nprobe=nprobe or record.nprobe,
    )


class ShardedIndex:
    """An index whose shards answer from elsewhere. It follows the protocol of `Index`.

    Args:
        ask: Asks one shard: its number, the name of a method and the arguments. It returns a
            callable that waits so many seconds for the answer.
        spans: The range of entries of each shard.
        dim: Length of a key.
        metric: How keys are compared.
        partial: Whether shards that do not answer are left out of an answer.
        patience: Seconds that a shard has to answer.

    Attributes:
        partial_answers: Number of searches that lacked a shard.
        actors: What answers for each shard, which lives as long as the index.
    """

    def __init__(
        self,
        ask: Callable[..., Callable[[float], Any]],
        spans: list[tuple[int, int]],
        dim: int,
        metric: Metric,
        *,
        partial: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.metric: Metric = metric
        self.dim = dim
        self.size = spans[-1][1]
        self.partial_answers = 0
        self.actors: list[Any] = []
        self._ask, self._spans = ask, spans
        self._partial, self._patience = partial, patience
        # For each shard that does not answer, what it was asked last.
        self._away: dict[int, Callable[[float], Any]] = {}
        self._lock = threading.Lock()

    @property
    def away(self) -> list[int]:
        """The numbers of the shards that did not answer when they were asked last."""
        return sorted(self._away)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Searches as `Index.search` says. Neighbors are sorted, with the nearest first.

        Raises:
            UnreachableError: when a shard does not answer, and partial answers were not asked for,
                or when no shard answers.
        """
        array = np.ascontiguousarray(queries.detach().cpu().numpy(), np.float32)
        k = min(k, self.size)
        asked = [number for number in range(len(self._spans)) if self._is_back(number)]
        answers = [(number, self._ask(number, "search", array, k)) for number in asked]
        until = time.monotonic() + self._patience
        parts = []
        for number, answer in answers:
            try:
                parts.append(answer(max(0.0, until - time.monotonic())))
            except UnreachableError:
                if not self._partial:
                    raise self.unreachable(number) from None
                self._leave_out(number, answer)
        if len(parts) < len(self._spans):
            if not parts:
                raise self.unreachable(self.away[0])
            with self._lock:
                self.partial_answers += 1
        distances, ids = merged(parts, k, self.metric, len(array))
        return torch.from_numpy(distances), torch.from_numpy(ids)

    def _is_back(self, number: int) -> bool:
        """Whether a shard is to be asked: it did answer what it was asked last."""
        before = self._away.get(number)
        if before is None:
            return True
        try:
            before(0.0)
        except UnreachableError:
            return False
        logger.warning("shard %d answers again", number)
        self._away.pop(number, None)
        return True

    def _leave_out(self, number: int, answer: Callable[[float], Any]) -> None:
        first, last = self._spans[number]
        logger.warning(
            "shard %d, the entries %d to %d, does not answer: answers are partial until it does",
            number,
            first,
            last - 1,
        )
        self._away[number] = answer

    def unreachable(self, number: int) -> UnreachableError:
        """Makes the error for a shard that does not answer."""
        first, last = self._spans[number]
        return UnreachableError(
            f"shard {number} of {len(self._spans)}, the entries {first:,} to {last - 1:,}, does "
            "not answer: look at `ray status` and run the command again, or give --partial to go "
            "on without it"
        )

    def reconstruct(self, ids: Array) -> Tensor:
        """See `Index.reconstruct`.

        Raises:
            UnreachableError: when a shard does not answer.
        """
        ids = np.asarray(ids, np.int64)
        out = np.empty((len(ids), self.dim), np.float32)
        asked = []
        for number, (first, last) in enumerate(self._spans):
            inside = (ids >= first) & (ids < last)
            if inside.any():
                asked.append((number, inside, self._ask(number, "reconstruct", ids[inside])))
        for number, inside, answer in asked:
            try:
                out[inside] = answer(self._patience)
            except UnreachableError:
                raise self.unreachable(number) from None
        return torch.from_numpy(out)

    def remove(self, ids: Array) -> None:
        """Not possible: a shard leaves documents out from its opening on."""
        raise ConfigError(
            f"{len(ids)} entries cannot be removed from an index that is spread over machines: "
            "open it again without their documents"
        )


class RayIndexes(Indexes):
    """Opens the indexes of datastores on the machines of a Ray cluster.

    Args:
        address: The cluster's address: "auto", host:port, or "local".
        shards: Number of shards of each datastore; None takes one for each machine.
        partial: Whether shards that do not answer are left out of an answer.
        patience: Seconds that a shard has to answer.

    Raises:
        MissingDependencyError: when Ray is not installed.
        UnreachableError: when there is no cluster at the address.
    """

    def __init__(
        self,
        address: str,
        *,
        shards: int | None = None,
        partial: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__()
        self._ray = connect(address)
        self._shards = shards or max(1, len(machines(self._ray)))
        self._partial, self._patience = partial, patience
        self._opened: list[ShardedIndex] = []

    def close(self) -> None:
        """Ends all shards, so that the machines have their memory back."""
        for index in self._opened:
            for actor in index.actors:
                with suppress(Exception):
                    self._ray.kill(actor)

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
            lambda: self._open(store, config),
        )

    def _open(self, store: Datastore, config: KNNConfig) -> ShardedIndex:
        spans = ranges(len(store), self._shards)
        own = replace(config, nprobe=None)
        hub = store.revision is not None
        name = f"{store.name}@{store.revision}" if hub else str(store.folder.resolve())
        # An actor whose machine is lost starts again on another one, and is asked again.
        kind = self._ray.remote(
            num_cpus=1, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD"
        )(_OpenShard)
        actors = [
            kind.remote(name, store.manifest.checksum, *span, own.exclude, config.nprobe)
            for span in spans
        ]

        def ask(number: int, method: str, *given: Any) -> Callable[[float], Any]:
            ref = getattr(actors[number], method).remote(*given)
            return lambda seconds: self._fetched(ref, seconds)

        metric: Metric = store.manifest.metric
        index = ShardedIndex(
            ask,
            spans,
            store.manifest.dim,
            metric,
            partial=self._partial,
            patience=self._patience,
        )
        self._wait_for([actor.ready.remote() for actor in actors], index)
        if config.nprobe is None and not config.exclude and not len(store.removed_entries):
            check_probe(store, index)
        index.actors = actors
        self._opened.append(index)
        return index

    def _wait_for(self, ready: list[Any], index: ShardedIndex) -> None:
        """Waits until all shards are open, and tells about it where it takes long."""
        until = time.monotonic() + _OPENING
        left = list(ready)
        while left and time.monotonic() < until:
            _, left = self._ray.wait(left, num_returns=len(left), timeout=_TOLD_EVERY)
            if left:
                logger.warning(
                    "%d of %d shards are not open yet: they are being read, or wait for a machine "
                    "with a free CPU (`ray status` says which)",
                    len(left),
                    len(ready),
                )
        for number, ref in enumerate(ready):
            try:
                self._fetched(ref, 0.0 if ref in left else self._patience)
            except UnreachableError:
                raise index.unreachable(number) from None

    def _fetched(self, ref: Any, seconds: float) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=seconds)
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, KNNLogitsError):
                raise cause from None
            raise
        except errors.RayError as error:
            raise UnreachableError(f"no answer ({type(error).__name__})") from error


class _OpenShard:
    """The actor of a shard.

    An actor whose constructor fails is dead, and its error is lost. So the shard is opened by the
    first call, which passes the error on.
    """

    def __init__(self, *given: Any) -> None:
        self._given = given
        self._shard: Shard | None = None

    def _open(self) -> Shard:
        if self._shard is None:
            self._shard = Shard(*self._given)
        return self._shard

    def ready(self) -> bool:
        """Opens the shard."""
        self._open()
        return True

    def search(self, queries: Array, k: int) -> Found:
        """See `Shard.search`."""
        return self._open().search(queries, k)

    def reconstruct(self, ids: Array) -> Array:
        """See `Shard.reconstruct`."""
        return self._open().reconstruct(ids)
