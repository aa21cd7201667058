"""Times short work for the estimates of a build."""

from __future__ import annotations

import time
from collections.abc import Callable

# Short work is timed so often. The best time is the one that no other program has slowed down.
_REPEATS = 3


def fastest(work: Callable[[], object]) -> float:
    """The seconds that some work takes on an idle machine."""
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
