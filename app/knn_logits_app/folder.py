"""Keeps visitors' files in a private folder that is deleted when the server ends.

A server that was killed cannot delete its folder, so the next server that starts deletes it.
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
    """A folder at `path` that only this process's user may read, locked while the process lives."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = FileLock(self.path / ".lock", thread_local=False)
        self._lock.acquire()
        self._owner = os.getpid()

    def delete(self) -> None:
        """Deletes the folder with its content. In a fork of the process this does nothing."""
        if os.getpid() == self._owner:
            _delete(self.path, self._lock)


@cache
def private_folder() -> PrivateFolder:
    """Returns the private folder of this process."""
    folder = PrivateFolder()
    atexit.register(folder.delete)
    return folder


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM end the process like a normal exit, so that it cleans up."""
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
    """Deletes the folders of processes that have ended."""
    for path in parent.glob(f"{_PREFIX}*"):
        lock = FileLock(path / ".lock", thread_local=False)
        try:
            info = path.lstat()
            mine = not hasattr(os, "getuid") or info.st_uid == os.getuid()
            # A folder that was just made may not be locked yet.
            old = time.time() - info.st_mtime > _UNLOCKED_SECONDS
            if not (stat.S_ISDIR(info.st_mode) and mine and (old or (path / ".lock").exists())):
                continue
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue  # Its server is alive, or another process has deleted it.
        _delete(path, lock)


def _delete(path: Path, lock: FileLock) -> None:
    shutil.rmtree(path, ignore_errors=True)
    lock.release()
    # On Windows the lock's file can only be deleted after its release.
    shutil.rmtree(path, ignore_errors=True)
