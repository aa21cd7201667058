"""How a long job tells how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")

# The total of a phase that is told as a share.
WHOLE = 100_000
_EACH = 0.25
# Work that takes as long as it was expected to has come so far; the rest is for what takes longer.
_EXPECTED_SHARE = 0.9


class Progress(Protocol):
    """Called now and then with what is being done.

    The command line draws bars from it; `no_progress` ignores it.
    """

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Takes the phase's name, the steps done, and all steps, None when that is not known."""
        ...


def no_progress(phase: str, done: int, total: int | None) -> None:
    """Ignores what it is told."""


def while_running(
    progress: Progress, phase: str, seconds: Callable[[], float], work: Callable[[], Result]
) -> Result:
    """Does work that says nothing of itself, and tells how far it must be by the time that passed.

    The work is done in another thread, so that what `progress` raises, Ctrl-C too, ends the wait
    for it at once. It is told as a share, whose total is `WHOLE`.

    Args:
        progress: Told four times a second.
        phase: The phase's name.
        seconds: That the work is expected to take; asked where somebody listens.
        work: What is done; it must not depend on the thread that it runs in.

    Returns:
        What the work returns.
    """
    if progress is no_progress:
        return work()
    found: list[Result] = []
    failed: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            found.append(work())
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
    return found[0]


def _share(passed: float) -> float:
    """How much of the work must be done, by the time passed in units of what was expected."""
    if passed <= 1.0:
        return _EXPECTED_SHARE * passed
    # What is left by this shrinks so that the rest seems to take as long as all did so far.
    return 1.0 - (1.0 - _EXPECTED_SHARE) / passed
