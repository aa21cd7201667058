"""Numbered pieces of work on actors that may be lost. The results come in the pieces' order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from knn_logits.errors import UnreachableError
from knn_logits.ray.connection import result_of

logger = logging.getLogger(__name__)

# A piece that is lost so often is not tried again, since the work itself may end its process.
_TRIES = 5
# Maximum number of pieces that a worker may be ahead of the result that comes next.
_AHEAD = 2
_POLL, _FETCH = 5.0, 120.0


@dataclass
class _Task:
    number: int
    piece: Any
    tries: int = 0


class Workers:
    """Actors with `work(piece)` and `ready()`, which says whether results equal this machine's."""

    def __init__(
        self, ray: Any, start: Callable[[], Any], count: int, *, patience: float = 600.0
    ) -> None:
        self._ray, self._start = ray, start
        self._count, self._patience = count, patience
        # The task of each actor that is not idle, or None while it starts.
        self._calls: dict[Any, tuple[Any, _Task | None]] = {}
        self._idle: list[Any] = []
        self._failures = 0
        self._warned = False

    def __enter__(self) -> Workers:
        for _ in range(self._count):
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        for actor in [*self._idle, *(actor for actor, _ in self._calls.values())]:
            self._end(actor)

    def results(self, pieces: Iterator[Any]) -> Iterator[Any]:
        """Yields the results of pieces of work, in the pieces' order."""
        tasks = (_Task(number, piece) for number, piece in enumerate(pieces))
        lost: list[_Task] = []
        done: dict[int, Any] = {}
        begun = following = 0
        while True:
            # Results make room for further pieces, so they are handed out first.
            while following in done:
                yield done.pop(following)
                following += 1
            while self._idle and (lost or begun - following < _AHEAD * self._count):
                task = lost.pop() if lost else next(tasks, None)
                if task is None:
                    break
                actor = self._idle.pop()
                self._calls[actor.work.remote(task.piece)] = actor, task
                begun = max(begun, task.number + 1)
            if self._idle and begun == following:
                return
            ref = self._wait()
            actor, task = self._calls.pop(ref)
            try:
                result = result_of(self._ray, ref, _FETCH)
            except (TimeoutError, UnreachableError) as error:
                self._replace(actor, error)
                if task is not None:
                    lost.append(task)
                    task.tries += 1
                    logger.warning("a worker was lost; its task is reassigned")
                    if task.tries >= _TRIES:
                        raise UnreachableError(
                            f"a task failed {_TRIES} times because its process died: check for "
                            "machines that run out of memory, then run the command again"
                        ) from error
                continue
            self._failures = 0
            self._idle.append(actor)
            if task is not None:
                done[task.number] = result
            elif not result and not self._warned:
                self._warned = True
                logger.warning(
                    "a worker runs on a different CPU or GPU type, which rounds differently: the "
                    "files may differ in the last bits from those of a single machine"
                )

    def _wait(self) -> Any:
        """The reference of a call that has ended."""
        spent = 0.0
        while True:
            ready, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=_POLL)
            if ready:
                return ready[0]
            works = any(task is not None for _, task in self._calls.values())
            spent = 0.0 if works else spent + _POLL
            if spent >= self._patience:
                raise UnreachableError(
                    f"no machine of the cluster had room for a worker for {spent:.0f} s: check "
                    "`ray status`, then run the same command again to resume"
                )

    def _replace(self, actor: Any, error: Exception) -> None:
        self._failures += 1
        if self._failures > _TRIES * self._count:
            raise UnreachableError(
                f"workers keep dying ({error}): check `ray status` and the "
                "machines' memory, then run the same command again to resume"
            ) from error
        self._end(actor)
        self._begin()

    def _begin(self) -> None:
        actor = self._start()
        self._calls[actor.ready.remote()] = actor, None

    def _end(self, actor: Any) -> None:
        with suppress(Exception):
            self._ray.kill(actor)
