"""Allows one writer at a time, with a lock that the system releases when its holder dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from knn_logits.errors import BusyError, DatastoreError
from knn_logits.store import layout
from knn_logits.store.files import storage_error
from knn_logits.store.reading import hub_repo_of


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other writers out of a folder."""
    repo, path = hub_repo_of(folder), folder / layout.LOCK
    if repo is not None:
        raise DatastoreError(
            f"{folder} is a download of {repo} and cannot be changed: copy it to another folder "
            f"with `knn-logits pull {repo} --out FOLDER`"
        )
    if path.is_symlink():
        raise DatastoreError(f"{path} is a link, and links are refused; delete it")
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"another process is writing {folder}: wait until it is done, or stop it"
        ) from error
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        yield
    finally:
        lock.release()
