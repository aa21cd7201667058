"""Work in a fork, as `forked.py` starts it for other tests."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from forked import Fork


def test_many_threads_may_start_at_once():
    threads = 6

    def convert(together):
        together.wait()
        return torch.ones(40_000).to(torch.float64)

    def work():
        together = threading.Barrier(threads)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(convert, [together] * threads))

    def parent():
        # A large pool takes long to make, so that the threads meet; tests are kept on one thread.
        torch._C.set_num_threads(24)
        torch.ones(100_000).add(1)
        for _ in range(3):
            with Fork(work) as child:
                _, errors = child.ended()
            assert child.returncode == 0, errors

    with Fork(parent) as done:
        _, errors = done.ended()
    assert done.returncode == 0, errors
