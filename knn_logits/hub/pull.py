"""`pull` fetches a datastore from the Hub, into the Hub's cache or into a new folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from knn_logits.errors import ConfigError, DatastoreError
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import replacing, storage_error
from knn_logits.store.hub_client import HubName, Remote, hub_name, needed
from knn_logits.store.manifest import Manifest
from knn_logits.store.records import FileRecord


@dataclass(frozen=True)
class Pulled:
    """A download: the name with its commit, the folder, and numbers of bytes."""

    name: HubName
    folder: Path
    bytes: int  # of the datastore
    fetched: int  # now


def pull(
    name: str,
    *,
    keys: bool | None = None,
    out: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    progress: Progress = no_progress,
) -> Pulled:
    """Fetches a datastore from the Hub. Files that arrived before an interruption are kept.

    Args:
        name: "org/name" or "org/name@revision".
        keys: Whether to fetch the keys; None fetches them if the index is made from them.
        out: A new folder for a copy that can be changed; None leaves it in the Hub's cache.
        token: Access token of the Hub; None takes the one of the login.
        progress: A callback that is told how far the work is.

    Returns:
        What was fetched.

    Raises:
        ConfigError: when the name is not a name on the Hub.
        DatastoreError: when `out` holds other files.
        HubError: when the datastore cannot be fetched.
        DamagedError: when a file differs from the manifest.
        StorageError: when the disk is full.
    """
    repo = hub_name(name)
    if repo is None:
        raise ConfigError(f"{name!r} is a folder, or not a valid Hub name: use org/name")
    remote = Remote.find(repo, token=token)
    manifest = remote.manifest()
    records = list(manifest.files) if keys else needed(manifest)
    missing = remote.missing(records)
    remote.fetch(records, manifest, progress)
    folder = remote.folder
    if out is not None:
        folder = Path(out).resolve()
        _copy(remote.folder, folder, manifest, records, progress)
    return Pulled(remote.pinned, folder, _bytes(manifest.files), _bytes(missing))


def _bytes(records: Sequence[FileRecord]) -> int:
    return sum(record.bytes for record in records)


def _copy(
    source: Path,
    folder: Path,
    manifest: Manifest,
    records: Sequence[FileRecord],
    progress: Progress,
) -> None:
    """Copies files into a new folder. The manifest is the last."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(folder, error) from error
    names = {path.name for path in folder.iterdir()}
    # An interrupted copy left files of a datastore without a manifest.
    if layout.MANIFEST in names or not all(map(layout.is_ours, names)):
        raise DatastoreError(f"{folder} contains other files; choose an empty folder")
    count = counter(progress, "copying", _bytes(records))
    for record in records:
        with replacing(folder / record.name) as copy, (source / record.name).open("rb") as file:
            shutil.copyfileobj(file, copy, 1 << 22)
        count(record.bytes)
    manifest.model_copy(update={"files": tuple(records)}).write(folder)
    Datastore(folder)
