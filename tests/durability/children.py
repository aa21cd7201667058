"""Runs something in a forked child, so that a crash, a hang or a blow-up is its alone."""

import os
import sys
import traceback
from pathlib import Path

# The scripts run without pytest, which puts the tests' folder on the path.
sys.path.insert(0, str(Path(__file__).parents[1]))


def fork(work, *arguments):
    """Starts `work(*arguments)` in a process of its own; returns its number."""
    number = os.fork()
    if number:
        return number
    status = 1
    try:
        work(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def ended(number):
    """Waits for a process; returns whether it ended without an error."""
    return os.waitpid(number, 0)[1] == 0


def ends_well(work, *arguments):
    """Whether `work(*arguments)` ends without an error in a process of its own."""
    return ended(fork(work, *arguments))
