"""The script `kills.py` with small numbers."""

import os
import subprocess
import sys
from pathlib import Path

import kills
import pytest

HERE = Path(__file__).parent

# They fork and kill, which only POSIX has; a process of their own, so that nothing is shared.
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


# The short run kills each job once.
@pytest.mark.parametrize("number", [11, pytest.param(100, marks=pytest.mark.soak)])
def test_nothing_goes_wrong(number):
    process = subprocess.run(
        [sys.executable, HERE / "kills.py", "--number", str(number), "--seed", "7"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    assert all(f"jobs: {kind}" in process.stdout for kind in kills.KINDS)
