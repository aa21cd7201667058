"""Tells whether the time of a function grows with more than the size of what it reads."""

import time

ATTEMPTS = 8  # something else may take the time of an attempt


def seconds(run):
    """The processor time of a call in this thread."""
    since = time.thread_time()
    run()
    return time.thread_time() - since


def grows_faster(run, short, long, *, most, least=2e-3):
    """Whether `run(long)` takes more than `most` times as long as `run(short)`, at every attempt.

    A time under `least` seconds counts as that long, since it is not measured well.
    """
    shortest = longest = float("inf")
    for _ in range(ATTEMPTS):
        longest = min(longest, seconds(lambda: run(long)))
        shortest = min(shortest, seconds(lambda: run(short)))
        if longest <= most * max(shortest, least):
            return False
    return True
