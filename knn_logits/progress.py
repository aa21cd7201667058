"""How a long job reports its progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")

# The total of a phase whose progress is a share of the whole, not a number of steps.
WHOLE = 100_000
_EACH = 0.25
# The share shown once the expected time has passed. The rest is left for work that takes longer.
_EXPECTED_SHARE = 0.9


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


def while_running(
    progress: Progress, phase: str, seconds: Callable[[], float], work: Callable[[], Result]
) -> Result:
    """Runs work in another thread, and estimates its progress from the `seconds` expected."""
    if progress is no_progress:
        return work()
    results: list[Result] = []
    failed: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failed.append(error)
        ended.set()

    progress(phase, 0, WHOLE)
    expected = max(seconds(), _EACH)
    started = time.monotonic()
    threading.Thread(target=run, daemon=True).start()
    while not ended.wait(_EACH):
        share = _share((time.monotonic() - started) / expected)
        progress(phase, int(WHOLE * share), WHOLE)
    if failed:
        raise failed[0]
    progress(phase, WHOLE, WHOLE)
    return results[0]


def _share(passed: float) -> float:
    """The share of the work that is probably done after so many times the expected time."""
    if passed <= 1.0:
        return _EXPECTED_SHARE * passed
    # After the expected time the share approaches 1, and never reaches it.
    return 1.0 - (1.0 - _EXPECTED_SHARE) / passed
