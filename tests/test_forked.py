"""Work in a fork, as `forked.py` starts it for other tests."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from forked import Fork

_THREADS = 6


def test_many_threads_may_start_at_once():
    """A process of its own, since no fork of one whose threads have computed may use OpenMP."""
    call = [sys.executable, "-c", "import test_forked; test_forked.many_forks()"]
    done = subprocess.run(call, cwd=Path(__file__).parent, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()


def many_forks():
    # A large pool takes long to make, so that the threads meet; tests are kept on one thread.
    torch._C.set_num_threads(24)
    torch.ones(100_000).add(1)
    for _ in range(3):
        with Fork(_many_threads) as child:
            _, errors = child.ended()
        assert child.returncode == 0, errors


def _many_threads():
    together = threading.Barrier(_THREADS)
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(_convert, [together] * _THREADS))


def _convert(together):
    together.wait()
    return torch.ones(40_000).to(torch.float64)
