"""An index whose shards answer from elsewhere, each by one of its replicas; no word of Ray."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, KNNLogitsError, UnreachableError
from knn_logits.locks import new_lock
from knn_logits.metrics import Metric
from knn_logits.ray.shard import Neighborhood

logger = logging.getLogger(__name__)

# A shard that was opened has so many seconds to answer; it may have to be opened again meanwhile.
PATIENCE = 60.0
# After so many seconds without an answer, the next replica is asked as well.
SILENCE = 5.0
# Where several may answer, each is polled for so many seconds.
_POLL = 0.02
# Waits so many seconds for an answer. It raises a TimeoutError while there is none yet, and an
# UnreachableError where none will come.
Answer = Callable[[float], Any]


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
        *,
        partial: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.metric: Metric = metric
        self.dim = dim
        self.size = spans[-1][1]
        self.partial_answers = 0  # searches that lacked a shard
        self.nprobe: int | None = None
        self.actors: list[list[Any]] = []  # the replicas of each shard
        self._ask, self._spans = ask, spans
        self._partial, self._patience = partial, patience
        # For each shard that does not answer, the answer that it still owes.
        self._away: dict[int, Answer] = {}
        self._lock = new_lock(self)

    @property
    def away(self) -> list[int]:
        """The numbers of the shards that did not answer last time."""
        return sorted(self._away)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Searches as `Index.search` says. Neighbors are sorted, with the nearest first."""
        array = np.ascontiguousarray(queries.detach().cpu().numpy(), np.float32)
        k = min(k, self.size)
        numbers = [number for number in range(len(self._spans)) if self._is_back(number)]
        answers = [(number, self._ask(number, "search", array, k)) for number in numbers]
        until = time.monotonic() + self._patience
        parts = []
        for number, answer in answers:
            try:
                parts.append(answer(max(0.0, until - time.monotonic())))
            except (TimeoutError, UnreachableError):
                if not self._partial:
                    raise self.unreachable(number) from None
                first, last = self._spans[number]
                logger.warning(
                    "shard %d, the entries %d to %d, does not respond: results are partial until "
                    "it does",
                    number,
                    first,
                    last - 1,
                )
                self._away[number] = answer
        if not parts:
            raise self.unreachable(self.away[0])
        if len(parts) < len(self._spans):
            with self._lock:
                self.partial_answers += 1
        nearness, ids = merged(parts, k)
        return torch.from_numpy(nearness), torch.from_numpy(ids)

    def _is_back(self, number: int) -> bool:
        """Whether a shard has given the answer that it owed, if any."""
        before = self._away.get(number)
        if before is None:
            return True
        try:
            before(0.0)
        except (TimeoutError, UnreachableError):
            return False
        logger.warning("shard %d responds again", number)
        self._away.pop(number, None)
        return True

    def unreachable(self, number: int) -> UnreachableError:
        first, last = self._spans[number]
        return UnreachableError(
            f"shard {number} of {len(self._spans)}, the entries {first:,} to {last - 1:,}, does "
            "not respond: check `ray status` and run the command again, or use --partial to "
            "continue without it"
        )

    def reconstruct(self, ids: Array) -> Tensor:
        """See `Index.reconstruct`; raises UnreachableError when a shard does not answer."""
        ids = np.asarray(ids, np.int64)
        vectors = np.empty((len(ids), self.dim), np.float32)
        calls = []
        for number, (first, last) in enumerate(self._spans):
            inside = (ids >= first) & (ids < last)
            if inside.any():
                calls.append((number, inside, self._ask(number, "reconstruct", ids[inside])))
        for number, inside, answer in calls:
            try:
                vectors[inside] = answer(self._patience)
            except (TimeoutError, UnreachableError):
                raise self.unreachable(number) from None
        return torch.from_numpy(vectors)

    def remove(self, ids: Array) -> None:
        """Not possible: a shard leaves documents out from its opening on."""
        raise ConfigError(
            f"{len(ids)} entries cannot be removed from a sharded index: reopen it without their "
            "documents"
        )


class Replicas:
    """Calls go to the first replica of a shard that answers; others are asked again later."""

    def __init__(
        self,
        ask: Callable[..., Answer],  # the shard, the replica, the name of a method, its arguments
        back: Callable[[int, int], Answer],  # answers when a lost replica of a shard is back
        count: int,
        *,
        silence: float = SILENCE,
    ) -> None:
        self._ask, self._silence = ask, silence
        self._back, self._count = back, count
        # For each replica that is away, the answer that it gives first when it is back.
        self._away: dict[tuple[int, int], Answer] = {}
        self._lock = new_lock(self)

    def ask(self, number: int, method: str, *arguments: Any) -> Answer:
        """Asks one shard: its number, the name of a method and the arguments."""
        pending: dict[int, Answer] = {}
        since = time.monotonic()

        def begin() -> bool:
            """Asks the next replica that is not away, and returns whether there is one."""
            nonlocal since
            replica = self._first(number, set(pending))
            if replica is None:
                return False
            pending[replica] = self._ask(number, replica, method, *arguments)
            since = time.monotonic()
            return True

        def answer(seconds: float) -> Any:
            until = time.monotonic() + seconds
            while True:
                silent_at = since + self._silence
                for replica in list(pending):
                    now = time.monotonic()
                    patience = _POLL if len(pending) > 1 else max(_POLL, silent_at - now)
                    try:
                        return pending[replica](min(max(0.0, until - now), patience))
                    except TimeoutError:
                        continue
                    except UnreachableError:
                        del pending[replica]
                        self._lose(number, replica)
                now = time.monotonic()
                waiting = list(pending.items())
                if (not waiting or now >= silent_at) and begin():
                    for replica, owed in waiting:
                        self._lose(number, replica, owed)
                if now >= until:
                    raise TimeoutError(f"no replica has answered within {seconds:.0f} s")
                if not pending:
                    time.sleep(min(_POLL, max(0.0, until - now)))

        begin()
        return answer

    def _first(self, number: int, but: set[int]) -> int | None:
        """The first replica of a shard that is not away, apart from some."""
        numbers = (replica for replica in range(self._count) if replica not in but)
        return next((replica for replica in numbers if self._is_present(number, replica)), None)

    def _is_present(self, number: int, replica: int) -> bool:
        answer = self._away.get((number, replica))
        if answer is None:
            return True
        try:
            answer(0.0)
        except TimeoutError:
            return False
        except UnreachableError:
            # It was lost again before it answered, or it was silent and is lost since.
            with self._lock:
                self._away[number, replica] = self._back(number, replica)
            return False
        except KNNLogitsError as error:
            logger.warning("replica %d of shard %d cannot be reopened: %s", replica, number, error)
            self._away[number, replica] = _never
            return False
        logger.warning("replica %d of shard %d is back", replica, number)
        self._away.pop((number, replica), None)
        return True

    def _lose(self, number: int, replica: int, answer: Answer | None = None) -> None:
        """Notes that a replica of a shard is lost, or silent where it has an answer to give."""
        with self._lock:
            if (number, replica) in self._away:
                return
            self._away[number, replica] = answer or self._back(number, replica)
        logger.warning(
            "replica %d of shard %d %s: another replica takes over",
            replica,
            number,
            "is lost" if answer is None else "does not answer",
        )


def _never(seconds: float) -> Any:
    """The answer of a replica that is not asked again."""
    raise TimeoutError(f"no answer within {seconds:.0f} s")
