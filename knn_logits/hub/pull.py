"""`pull` fetches a datastore from the Hub, into the Hub's cache or into a new folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from knn_logits.errors import ConfigError
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import replacing
from knn_logits.store.hub_client import HubName, hub_name
from knn_logits.store.job import begin
from knn_logits.store.records import FileRecord
from knn_logits.store.remote import Remote, needed


@dataclass(frozen=True)
class Pulled:
    """A download: the name with its commit, the folder, and numbers of bytes."""

    name: HubName
    folder: Path
    bytes: int  # of the datastore
    fetched: int  # now
    left: int  # on the Hub


def pull(
    name: str,
    *,
    revision: str | None = None,
    keys: bool | None = None,
    out: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    progress: Progress = no_progress,
) -> Pulled:
    """Fetches a datastore from the Hub. Files that arrived before an interruption are kept.

    Args:
        name: "org/name" or "org/name@revision".
        revision: Branch, tag or commit; None takes the newest.
        keys: Whether to fetch the keys; None fetches them if the index is made from them.
        out: A new folder for a copy that can be changed; None leaves it in the Hub's cache.
        token: Access token of the Hub; None takes the one of the login.
        progress: A callback that is told how far the work is.

    Returns:
        What was fetched.

    Raises:
        ConfigError: when the name is not a name on the Hub.
        HubError: when the datastore cannot be fetched.
        DamagedError: when a file differs from the manifest.
        StorageError: when the disk is full.
    """
    repo = hub_name(name, revision)
    if repo is None:
        raise ConfigError(f"{name!r} is a folder, or not a valid Hub name: use org/name")
    remote = Remote.find(repo, token=token)
    manifest = remote.manifest()
    records = needed(manifest)
    if keys:
        records += [record for record in manifest.key_shards if record not in records]
    missing = remote.missing(records)
    remote.fetch(records, manifest, progress)
    left, folder = remote.missing(manifest.files), remote.folder
    if out is not None:
        store = Datastore(remote.folder, remote=remote)
        copied = records if keys is False else manifest.files
        folder = copy_fetched(store, copied, Path(out).resolve(), progress).folder
    return Pulled(remote.pinned, folder, *map(_bytes, (manifest.files, missing, left)))


def _bytes(records: Sequence[FileRecord]) -> int:
    return sum(record.bytes for record in records)


def copy_fetched(
    store: Datastore, records: Sequence[FileRecord], folder: Path, progress: Progress
) -> Datastore:
    """Copies the files that were fetched into a new folder."""
    manifest = store.manifest
    records = [record for record in records if (store.folder / record.name).exists()]
    if not store.has_keys:
        records = [record for record in records if layout.kind_of(record.name) != "keys"]
    count = counter(progress, "copying", _bytes(records))
    shard = 0
    with begin(folder, "build", {"copy of": manifest.checksum}) as job:
        for record in records:
            kind = layout.kind_of(record.name)
            assert kind is not None
            path = job.path(kind, shard if kind == "keys" else None)
            shard += kind == "keys"
            if path.name not in {file.name for file in job.files}:
                with replacing(path) as target, (store.folder / record.name).open("rb") as source:
                    shutil.copyfileobj(source, target, 1 << 22)
                job.note(path)
            count(record.bytes)
        job.commit(manifest, without=layout.KINDS)
    return Datastore(folder)
