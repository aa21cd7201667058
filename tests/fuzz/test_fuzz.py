"""Every parser on inputs that are changed at random, and on those that once broke one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# A process of its own, which forks; and limits that only Linux has.
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems may not limit the memory"
)


def fuzzed(*arguments):
    process = subprocess.run(
        [sys.executable, HERE / "fuzz.py", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-2000:]
    return process.stdout


def test_no_parser_breaks_on_a_few_inputs_and_on_those_that_once_broke_it():
    printed = fuzzed("--number", "100", "--seed", "1")  # two for each parser
    assert "failures: 0" in printed
    for name in ("pdf", "jsonl", "exact-datastore.json", "serve-conversation", "page"):
        assert f"\n{name}: " in f"\n{printed}"


@pytest.mark.soak
def test_no_parser_breaks():
    fuzzed("--number", "20000", "--seed", "7")
