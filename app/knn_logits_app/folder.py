"""The folder in which a server keeps what visitors give it: private, and gone when it ends.

A server that was killed could not delete its own: the next one to start does.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX = "knn-logits-page-"
_UNLOCKED_SECONDS = 60.0


class PrivateFolder:
    """A folder that only this process's user may read, locked as long as the process lives.

    Args:
        parent: Where it is made; None takes the system's folder for temporary files.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = FileLock(_lock_of(self.path), thread_local=False)
        self._lock.acquire()
        self._owner = os.getpid()

    def delete(self) -> None:
        """Deletes it with all that is in it; a fork of the process leaves it alone."""
        if os.getpid() == self._owner:
            _delete(self.path, self._lock)


@cache
def private_folder() -> PrivateFolder:
    """That of this process."""
    found = PrivateFolder()
    atexit.register(found.delete)
    return found


@contextmanager
def told_to_end() -> Iterator[None]:
    """Inside, a process that is told to end (SIGTERM) ends as a program does: it tidies up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def sweep(parent: Path) -> None:
    """Deletes the folders of processes that are there no more."""
    for path in parent.glob(f"{_PREFIX}*"):
        try:
            about = path.lstat()
            mine = not hasattr(os, "getuid") or about.st_uid == os.getuid()
            # One that was just made may not be locked yet.
            made = _lock_of(path).exists() or time.time() - about.st_mtime > _UNLOCKED_SECONDS
            if not (stat.S_ISDIR(about.st_mode) and mine and made):
                continue
            lock = FileLock(_lock_of(path), thread_local=False)
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue  # its server lives, or somebody else has swept it
        _delete(path, lock)


def _delete(path: Path, lock: FileLock) -> None:
    shutil.rmtree(path, ignore_errors=True)
    lock.release()
    # Where a file that is open cannot be deleted.
    shutil.rmtree(path, ignore_errors=True)


def _lock_of(path: Path) -> Path:
    return path / ".lock"
