"""Times short work for the estimates of a build."""

from __future__ import annotations

import time
from collections.abc import Callable

# Short work is timed so often. The best time is the one that other programs slow down the least.
_REPEATS = 3


def fastest(work: Callable[[], object]) -> float:
    """The seconds that some work takes on an idle machine.

    Where other programs run, a single thread's own time is shorter than what passes on the clock.
    Several threads have more time of their own than passes. The shorter of the two is taken.
    """
    times = []
    for _ in range(_REPEATS):
        began, began_work = time.perf_counter(), time.process_time()
        work()
        times.append(min(time.perf_counter() - began, time.process_time() - began_work))
    return min(times)
