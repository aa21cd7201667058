"""Runs something in a fork of this process: a process of its own that imports nothing anew.

A new interpreter takes seconds to import PyTorch. A fork has signals, an environment, an exit
status and an end of its own as well. What is read at import, and what is imported, stays as it is
here: tests of those need a new interpreter.
"""

import os
import signal
import sys
import threading
import traceback
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
PACKAGES = ("knn_logits", "knn_logits_app", "knn_logits_serve", "app")


class Fork:
    """A child that runs `work()`, with the few names of `subprocess.Popen` that tests need.

    Args:
        work: What runs. If it raises `SystemExit`, that is the exit status, and any other exception
            is printed and ends the child with 1.
        environment: Variables beside those of this process.
    """

    def __init__(self, work, **environment):
        pipes = [os.pipe(), os.pipe()]
        self.pid = os.fork()
        if not self.pid:
            self._run(work, environment, [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in pipes)
        self.returncode = None

    def _run(self, work, environment, ends):
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # Nobody waits longer for a child that hangs.
            signal.alarm(300)
            os.environ.update(environment)
            # CUDA cannot be used in a fork of a process that has used it.
            torch.cuda.is_available = lambda: False
            _one_thread_makes_the_pool()
            for number, end in enumerate(ends, 1):
                os.dup2(end, number)
            sys.stdout, sys.stderr = (
                os.fdopen(number, "w", buffering=1, encoding="utf-8", closefd=False)
                for number in (1, 2)
            )
            work()
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def runs(self):
        """Whether the child has not ended."""
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode is None

    def wait(self):
        """Waits for the end; the exit status, which is negative for a signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def ended(self):
        """Waits for the end; what was printed, and the messages. Few fit into a pipe unread."""
        out, err = self.stdout.read(), self.stderr.read()
        self.wait()
        self.close()
        return out, err

    def close(self):
        self.stdout.close()
        self.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self.wait()
        self.close()


def _one_thread_makes_the_pool():
    """Lets PyTorch replace the thread pool that a fork cannot inherit.

    The first thread that starts in a fork does so. Of two that start at once, as when a model is
    loaded, one may find no pool, and fails with "Invalid thread pool!".
    """
    thread = threading.Thread(target=torch.get_num_threads)
    thread.start()
    thread.join()


def alone_in(folder):
    """Lets this process find the repository's packages in a folder only, and starts it there."""
    os.chdir(folder)
    elsewhere = [one for one in map(Path, sys.path) if not one.is_relative_to(ROOT)]
    # The virtual environment may lie in the checkout.
    elsewhere += [one for one in map(Path, sys.path) if one.name == "site-packages"]
    sys.path[:] = [str(folder), *map(str, elsewhere)]
    sys.meta_path[:] = [one for one in sys.meta_path if "__editable__" not in str(one)]
    for name in list(sys.modules):
        if name.partition(".")[0] in PACKAGES:
            del sys.modules[name]


def command(*words):
    """Returns what runs `knn-logits WORDS` in a fork."""

    def work():
        from knn_logits.cli import main

        sys.argv = ["knn-logits", *map(str, words)]
        main()

    return work
