"""One writer at a time: a lock that the system lets go of when its holder dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from knn_logits.datastore import layout
from knn_logits.datastore.files import storage_error
from knn_logits.datastore.reading import hub_repo_of
from knn_logits.errors import BusyError, DatastoreError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other writers out of a folder.

    Args:
        folder: One that exists.

    Raises:
        BusyError: when another process, or another thread, is writing it, at once.
        DatastoreError: when the folder is a download in the Hub's cache, or the lock a link to
            another place.
        StorageError: when the folder cannot be written.
    """
    repo = hub_repo_of(folder)
    if repo is not None:
        raise DatastoreError(
            f"{folder} is a download of {repo}, which is not changed: copy it to a folder of its "
            f"own with `knn-logits pull {repo} --out FOLDER`"
        )
    if (folder / layout.LOCK).is_symlink():
        raise DatastoreError(f"{folder / layout.LOCK} is a link, which is not followed; delete it")
    lock = FileLock(folder / layout.LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"another process is writing {folder}: wait until it is done, or stop it"
        ) from error
    except OSError as error:
        raise storage_error(folder / layout.LOCK, error) from error
    try:
        yield
    finally:
        lock.release()
