"""Numbered pieces of work on actors that may be lost. The results come in the pieces' order."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from knn_logits.errors import UnreachableError
from knn_logits.ray.connection import result_of

logger = logging.getLogger(__name__)

# A piece that is lost so often is not tried again, since the work itself may end its process.
_TRIES = 5
# So many pieces a worker may be ahead of the result that comes next.
_AHEAD = 2
_POLL, _FETCH = 5.0, 120.0
_LOST = object()


class Workers:
    """Actors with `work(piece)` and `ready()`, which says whether results equal this machine's."""

    def __init__(
        self, ray: Any, start: Callable[[], Any], count: int, *, patience: float = 600.0
    ) -> None:
        self._ray, self._start = ray, start
        self._count, self._patience = count, patience
        self._starting: dict[Any, Any] = {}
        self._busy: dict[Any, tuple[int, Any]] = {}
        self._idle: list[Any] = []
        self._failures = 0
        self._warned = False

    def __enter__(self) -> Workers:
        for _ in range(self._count):
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        busy = [actor for _, actor in self._busy.values()]
        for actor in [*self._starting.values(), *busy, *self._idle]:
            self._end(actor)

    def results(self, pieces: Iterator[Any]) -> Iterator[Any]:
        """Yields the results of pieces of work, in the pieces' order."""
        pending: dict[int, Any] = {}
        done: dict[int, Any] = {}
        tries: dict[int, int] = {}
        lost: list[int] = []
        following = count = 0
        ended = False
        while True:
            # Results make room for further pieces, so they are handed out first.
            while following in done:
                yield done.pop(following)
                del pending[following]
                following += 1
            if ended and following == count:
                return
            while self._idle and (lost or not ended):
                if lost:
                    number = heapq.heappop(lost)
                elif count - following >= _AHEAD * self._count:
                    break
                else:
                    piece = next(pieces, None)
                    if piece is None:
                        ended = True
                        break
                    number, count = count, count + 1
                    pending[number] = piece
                actor = self._idle.pop()
                self._busy[actor.work.remote(pending[number])] = (number, actor)
            event = self._next()
            if event is None:
                continue
            number, result = event
            if result is not _LOST:
                done[number] = result
                continue
            tries[number] = tries.get(number, 0) + 1
            if tries[number] >= _TRIES:
                raise UnreachableError(
                    f"a task failed {_TRIES} times because its process died: check for machines "
                    "that run out of memory, then run the command again"
                )
            heapq.heappush(lost, number)

    def _next(self) -> tuple[int, Any] | None:
        """Waits for an actor; returns the piece that it did with its result, or `_LOST`."""
        ref = self._wait()
        starting = ref in self._starting
        number, actor = (-1, self._starting.pop(ref)) if starting else self._busy.pop(ref)
        result = self._value(ref, actor)
        if result is not _LOST:
            self._failures = 0
            self._idle.append(actor)
            if starting and not result and not self._warned:
                self._warned = True
                logger.warning(
                    "a worker runs on a different CPU or GPU type, which rounds differently: the "
                    "files may differ in the last bits from those of a single machine"
                )
        elif not starting:
            logger.warning("a worker was lost; its task is reassigned")
        return None if starting else (number, result)

    def _wait(self) -> Any:
        spent = 0.0
        while True:
            refs = [*self._busy, *self._starting]
            ready, _ = self._ray.wait(refs, num_returns=1, timeout=_POLL)
            if ready:
                return ready[0]
            spent = 0.0 if self._busy else spent + _POLL
            if spent >= self._patience:
                raise UnreachableError(
                    f"no machine of the cluster had room for a worker for {spent:.0f} s: check "
                    "`ray status`, then run the same command again to resume"
                )

    def _value(self, ref: Any, actor: Any) -> Any:
        try:
            return result_of(self._ray, ref, _FETCH)
        except (TimeoutError, UnreachableError) as error:
            self._failures += 1
            if self._failures > _TRIES * self._count:
                raise UnreachableError(
                    f"workers keep dying ({error}): check `ray status` and the "
                    "machines' memory, then run the same command again to resume"
                ) from error
            self._end(actor)
            self._begin()
            return _LOST

    def _begin(self) -> None:
        actor = self._start()
        self._starting[actor.ready.remote()] = actor

    def _end(self, actor: Any) -> None:
        with suppress(Exception):
            self._ray.kill(actor)
