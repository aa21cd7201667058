"""Numbered pieces of work on actors that may be lost. The results come in the pieces' order.

An actor is lost with its machine. Its piece then goes to another one, and a new actor takes its
place as soon as the cluster has room. Nothing here knows what the work is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from knn_logits.errors import UnreachableError
from knn_logits.ray.connection import fetched

logger = logging.getLogger(__name__)

# A piece that is lost so often is not tried again, since the work itself may end its process.
_TRIES = 5
# So many pieces a worker may be ahead of the result that is wanted next.
_AHEAD = 2
_LOOK, _FETCH = 5.0, 120.0


class Workers:
    """Actors that work on numbered pieces. They end with the `with` block.

    Args:
        ray: The ray module, connected.
        start: Starts an actor. It has two methods: `work(piece)`, and `ready()`, which raises if
            the actor is of no use, and returns whether its results are equal to the last bit to
            those of this machine.
        count: Number of actors.
        patience: Seconds to wait for a first actor while there is none.
    """

    def __init__(
        self, ray: Any, start: Callable[[], Any], count: int, *, patience: float = 600.0
    ) -> None:
        self._ray, self._start = ray, start
        self._count, self._patience = count, patience
        self._starting: dict[Any, Any] = {}
        self._busy: dict[Any, tuple[int, Any]] = {}
        self._idle: list[Any] = []
        self._failed = 0
        self._told = False

    def __enter__(self) -> Workers:
        for _ in range(self._count):
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        actors = [*self._starting.values(), *(actor for _, actor in self._busy.values())]
        for actor in [*actors, *self._idle]:
            self._end(actor)

    def results(self, pieces: Iterator[Any]) -> Iterator[Any]:
        """Yields the results of pieces of work, in the pieces' order.

        Raises:
            UnreachableError: when no machine is left, or a piece is lost again and again.
            KNNLogitsError: when the work raises one.
        """
        held: dict[int, Any] = {}
        done: dict[int, Any] = {}
        tries: dict[int, int] = {}
        waiting: list[int] = []
        wanted = given = 0
        ended = False
        while True:
            # Results make room for further pieces, so they are handed out before any is given.
            while wanted in done:
                yield done.pop(wanted)
                del held[wanted]
                wanted += 1
            if ended and wanted == given:
                return
            while self._idle and (waiting or not ended):
                if waiting:
                    number = waiting.pop(0)
                elif given - wanted >= _AHEAD * self._count:
                    break
                else:
                    piece = next(pieces, None)
                    if piece is None:
                        ended = True
                        break
                    number, given = given, given + 1
                    held[number] = piece
                actor = self._idle.pop()
                self._busy[actor.work.remote(held[number])] = (number, actor)
            for number, result in self._next():
                if result is not None:
                    done[number] = result
                    continue
                tries[number] = tries.get(number, 0) + 1
                if tries[number] >= _TRIES:
                    raise UnreachableError(
                        f"one part of the work was lost {_TRIES} times with the process that did "
                        "it: look for machines with too little memory, then run the command again"
                    )
                waiting = sorted([*waiting, number])

    def _next(self) -> list[tuple[int, Any]]:
        """Waits for an actor that is done, ready or lost.

        Returns:
            The piece that is done and its result, or None in its place if the piece was lost.
        """
        spent = 0.0
        while True:
            found, _ = self._ray.wait([*self._busy, *self._starting], num_returns=1, timeout=_LOOK)
            if found:
                break
            spent = 0.0 if self._busy else spent + _LOOK
            if spent >= self._patience:
                raise UnreachableError(
                    f"no machine of the cluster has had room for a worker for {spent:.0f} s: look "
                    "at `ray status`, then run the same command again, and it goes on here"
                )
        [ref] = found
        if ref in self._starting:
            actor = self._starting.pop(ref)
            equal = self._value(ref, actor)
            if equal is not _LOST:
                if not equal and not self._told:
                    self._told = True
                    logger.warning(
                        "a worker has another kind of processor and rounds in another way, so the "
                        "files differ in the last bits from those of one machine"
                    )
                self._idle.append(actor)
                self._failed = 0
            return []
        number, actor = self._busy.pop(ref)
        result = self._value(ref, actor)
        self._failed = 0 if result is not _LOST else self._failed
        if result is _LOST:
            logger.warning("a worker was lost; its part of the work goes to another one")
            return [(number, None)]
        self._idle.append(actor)
        return [(number, result)]

    def _value(self, ref: Any, actor: Any) -> Any:
        try:
            return fetched(self._ray, ref, _FETCH)
        except (TimeoutError, UnreachableError) as error:
            self._failed += 1
            if self._failed > _TRIES * self._count:
                raise UnreachableError(
                    f"workers end again and again ({error}): look at `ray status` and at the "
                    "machines' memory, then run the same command again, and it goes on here"
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


_LOST = object()
