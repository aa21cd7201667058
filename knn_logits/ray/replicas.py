"""Asks one of several actors that hold the same shard, and another one where it is lost.

Nothing here knows of Ray.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from knn_logits.errors import KNNLogitsError, UnreachableError
from knn_logits.locks import new_lock
from knn_logits.ray.sharded import Answer

logger = logging.getLogger(__name__)

# A replica that is silent for so many seconds gets company: the next one is asked as well.
SILENT = 5.0
# Where several may answer, each is looked at for so many seconds.
_LOOK = 0.02


class Replicas:
    """The replicas of all shards. Each call goes to the first replica that is there.

    A replica whose process is lost says so at once, and the call goes to the next one without a
    wait. A replica that is silent may be slow, or its machine may be cut off: the next one is
    asked as well, and the first answer counts. Either is asked again once it has answered.

    Args:
        ask: Asks one replica: the shard's number, the replica's number, the name of a method and
            the arguments.
        back: Asks a lost replica of a shard to tell when it is there again.
        count: Number of replicas of each shard.
        silent: Seconds after which another replica is asked as well.

    Attributes:
        asked: What asks one replica.
        silent: Seconds after which another replica is asked as well.
        passed_on: Number of calls that went to another replica.
    """

    def __init__(
        self,
        ask: Callable[..., Answer],
        back: Callable[[int, int], Answer],
        count: int,
        *,
        silent: float = SILENT,
    ) -> None:
        self.passed_on = 0
        self.asked, self.silent = ask, silent
        self._back, self._count = back, count
        # For each replica that is not there, what it will answer first.
        self._away: dict[tuple[int, int], Answer] = {}
        self._lock = new_lock(self)

    def ask(self, number: int, method: str, *given: Any) -> Answer:
        """Asks one shard: its number, the name of a method and the arguments."""
        call = _Call(self, number, (method, *given))
        call.begin()
        return call.answer

    def first(self, number: int, but: set[int]) -> int | None:
        """The first replica of a shard that is there, apart from some; None if there is none."""
        for replica in range(self._count):
            if replica not in but and self._is_there(number, replica):
                return replica
        return None

    def _is_there(self, number: int, replica: int) -> bool:
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
            logger.warning(
                "replica %d of shard %d cannot be opened again: %s", replica, number, error
            )
            self._away[number, replica] = _never
            return False
        logger.warning("replica %d of shard %d is there again", replica, number)
        self._away.pop((number, replica), None)
        return True

    def lost(self, number: int, replica: int, answer: Answer | None = None) -> None:
        """Notes that a replica of a shard is lost, or silent where it has an answer to give."""
        with self._lock:
            if (number, replica) in self._away:
                return
            self._away[number, replica] = answer or self._back(number, replica)
        logger.warning(
            "replica %d of shard %d %s: another one takes its work",
            replica,
            number,
            "is lost" if answer is None else "does not answer",
        )


def _never(seconds: float) -> Any:
    """The answer of a replica that is not asked again."""
    raise TimeoutError(f"no answer within {seconds:.0f} s")


class _Call:
    """A call of one shard, which goes from replica to replica until one answers."""

    def __init__(self, replicas: Replicas, number: int, given: tuple[Any, ...]) -> None:
        self._replicas, self._number, self._given = replicas, number, given
        self._pending: dict[int, Answer] = {}
        self._since = time.monotonic()

    def begin(self) -> bool:
        """Asks the next replica that is there, and returns whether there is one."""
        replica = self._replicas.first(self._number, set(self._pending))
        if replica is None:
            return False
        self._pending[replica] = self._replicas.asked(self._number, replica, *self._given)
        self._since = time.monotonic()
        return True

    def answer(self, seconds: float) -> Any:
        """Waits for the first answer.

        Raises:
            TimeoutError: when no replica has answered after so many seconds.
        """
        until = time.monotonic() + seconds
        while True:
            for replica in list(self._pending):
                left = max(0.0, until - time.monotonic())
                try:
                    return self._pending[replica](min(left, self._look()))
                except TimeoutError:
                    continue
                except UnreachableError:
                    del self._pending[replica]
                    self._replicas.lost(self._number, replica)
            now = time.monotonic()
            if not self._pending or now - self._since >= self._replicas.silent:
                self._go_on()
            if now >= until:
                raise TimeoutError(f"no replica has answered within {seconds:.0f} s")
            if not self._pending:
                time.sleep(min(_LOOK, max(0.0, until - now)))

    def _look(self) -> float:
        if len(self._pending) > 1:
            return _LOOK
        return max(_LOOK, self._since + self._replicas.silent - time.monotonic())

    def _go_on(self) -> None:
        waiting = list(self._pending.items())
        if not self.begin():
            return
        self._replicas.passed_on += 1
        for replica, answer in waiting:
            self._replicas.lost(self._number, replica, answer)
