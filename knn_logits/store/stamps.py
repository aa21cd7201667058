"""Remembers which datastores were verified on this machine, so that opening them again is quick.

A stamp is a file in the user's cache folder, and never in the datastore, where its publisher could
forge it. It holds each file's size, times and place on the disk. A later write changes these.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from knn_logits.errors import StorageError

# Two changes within one tick of the file system's clock have the same time.
_TICK_NS = 50_000_000

State = tuple[int, ...]


def cache_folder() -> Path:
    """The folder for files that can be made again: `KNN_LOGITS_CACHE`, or the user's cache."""
    named = os.environ.get("KNN_LOGITS_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "knn-logits"


def state_of(path: Path) -> State:
    """What changes when a file is written: its size, its times and its place on the disk."""
    state = path.stat()
    return (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev)


def _stamp(folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()
    return cache_folder() / "verified" / f"{name}.json"


def _content(checksum: str, states: dict[str, State]) -> dict[str, object]:
    return {"checksum": checksum, "files": {name: list(one) for name, one in states.items()}}


def is_stamped(folder: Path, checksum: str, states: dict[str, State]) -> bool:
    """Whether exactly these files were verified before."""
    try:
        found = json.loads(_stamp(folder).read_bytes())
    except (OSError, ValueError, RuntimeError, RecursionError):
        return False
    return bool(found == _content(checksum, states))


def write_stamp(folder: Path, checksum: str, states: dict[str, State], since: int) -> None:
    """Notes that these files were verified. If the note cannot be written, nothing happens.

    Args:
        folder: The datastore's folder.
        checksum: The manifest's checksum.
        states: The state of each file before it was read.
        since: The time at which the states were taken, in nanoseconds of `time.time_ns`.
    """
    if any(max(state[1:3]) > since - _TICK_NS for state in states.values()):
        return
    from knn_logits.store.files import write_bytes

    with suppress(OSError, RuntimeError, StorageError):
        path = _stamp(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, json.dumps(_content(checksum, states)).encode())


def now() -> int:
    """Nanoseconds since 1970."""
    return time.time_ns()
