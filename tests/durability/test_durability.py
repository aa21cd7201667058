"""The scripts beside this file, with small numbers; each says what it shows."""

import os
import subprocess
import sys
from pathlib import Path

import kills
import pytest

HERE = Path(__file__).parent

# They fork and kill, which only POSIX has; a process of their own, so that nothing is shared.
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


# The short run kills each job once, and lets four pairs of jobs meet.
SHORT = ("kills=11", "writers=4")
LONG = [("kills", 100), ("hostile", 660), ("writers", 200)]


def ended_well(script, *arguments):
    process = subprocess.run(
        [sys.executable, HERE / f"{script}.py", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return process.stdout


def test_nothing_goes_wrong_in_the_short_runs():
    printed = ended_well("together", *SHORT)
    assert printed.count("failures: 0") == len(SHORT)
    assert all(f"'jobs: {kind}'" in printed for kind in kills.KINDS)


@pytest.mark.soak
@pytest.mark.parametrize(("script", "number"), LONG)
def test_nothing_goes_wrong(script, number):
    ended_well(script, "--number", str(number), "--seed", "7")
