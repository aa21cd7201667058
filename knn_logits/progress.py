"""How a long job reports its progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol, TypeVar

Result = TypeVar("Result")

_SECONDS_BETWEEN_REPORTS = 0.25


class Progress(Protocol):
    """A callback that a long job calls now and then with what it is doing."""

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Takes the name of a phase, the steps done, and the number of all steps if it is known."""
        ...


def no_progress(phase: str, done: int, total: int | None) -> None:
    """Ignores what it is told."""


def counter(progress: Progress, phase: str, total: int, done: int = 0) -> Callable[[int], None]:
    """Reports how far a phase is, and returns a function that is told of further steps."""
    progress(phase, done, total)

    def advance(steps: int) -> None:
        nonlocal done
        done = min(total, done + steps)
        progress(phase, done, total)

    return advance


def while_running(progress: Progress, phase: str, work: Callable[[], Result]) -> Result:
    """Runs work that reports nothing in another thread, and reports meanwhile that it runs."""
    if progress is no_progress:
        return work()
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    # A thread of an executor would be waited for after Ctrl-C.
    threading.Thread(target=run, daemon=True).start()
    progress(phase, 0, None)
    while not wait([result], _SECONDS_BETWEEN_REPORTS).done:
        progress(phase, 0, None)
    return result.result()
