"""Times short work for the estimates of a build."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Short work is timed so often. The best time is the one that other programs slow down the least.
_REPEATS = 3
# More than the fewest repeats are timed for so many seconds at most.
_LONG_ENOUGH = 0.1


def fastest(work: Callable[[], object]) -> float:
    """The seconds that some work takes on an idle machine.

    Where other programs run, a single thread's own time is shorter than what passes on the clock.
    Several threads have more time of their own than passes. The shorter of the two is taken.
    """
    return min(_seconds(work) for _ in range(_REPEATS))


def usual(work: Callable[[T], object], given: Sequence[T]) -> float:
    """The median of the seconds that some work takes with each of the things given to it.

    A search that is repeated finds in the processor's caches what it reads. So short searches are
    timed with other queries each time, after memory was read once by all of them. Fewer of them are
    taken where each takes long.
    """
    once = _seconds(lambda: work(given[0]))
    given = given[: max(_REPEATS, int(_LONG_ENOUGH / max(once, 1e-9)))]
    for one in given:
        work(one)
    return statistics.median(_seconds(lambda one=one: work(one)) for one in given)  # type: ignore[misc]


def _seconds(work: Callable[[], object]) -> float:
    began, began_work = time.perf_counter(), time.process_time()
    work()
    return min(time.perf_counter() - began, time.process_time() - began_work)
