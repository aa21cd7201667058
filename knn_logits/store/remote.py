"""Fetches one commit of a datastore from the Hub, file by file, the manifest first."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from knn_logits.errors import DamagedError, DatastoreError, HubError, StorageError
from knn_logits.progress import Progress, no_progress
from knn_logits.store import layout
from knn_logits.store.files import delete
from knn_logits.store.hub_client import (
    LARGEST_ANSWER,
    REPO_TYPE,
    HubName,
    asking,
    identity,
    is_offline,
    is_watched,
)
from knn_logits.store.manifest import Manifest, read_manifest
from knn_logits.store.reading import sha256
from knn_logits.store.records import FileRecord

# A partial file that nobody has written to for so long was left by a killed process.
_ABANDONED_SECONDS = 300


@dataclass(frozen=True)
class Remote:
    """One commit of a datastore on the Hub. `Remote.find` makes it."""

    name: HubName
    # The folder in the cache, named by the commit, with links into the cache's blobs.
    folder: Path
    # The cache, the token, and whether the Hub may be asked.
    access: Mapping[str, Any]

    @classmethod
    def find(
        cls,
        name: HubName,
        *,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
    ) -> Remote:
        """Fetches the manifest, or takes it from the cache if the Hub cannot be reached."""
        access = {"cache_dir": cache_dir, "token": token, "local_files_only": local_files_only}
        path = _download(name, layout.MANIFEST, LARGEST_ANSWER, access, no_progress)
        return cls(name, path.parent, access)

    @property
    def pinned(self) -> HubName:
        return HubName(self.name.repo, self.folder.name)

    def manifest(self) -> Manifest:
        """The manifest of this commit. A damaged one is fetched again the next time."""
        try:
            return read_manifest(self.folder)
        except DamagedError:
            _drop(self.folder / layout.MANIFEST)
            raise

    def missing(self, records: Sequence[FileRecord]) -> list[FileRecord]:
        return [record for record in records if not (self.folder / record.name).exists()]

    def fetch(self, records: Sequence[FileRecord], progress: Progress = no_progress) -> None:
        """Fetches files that are not in the cache, one after another. Opening them hashes them."""
        missing = self.missing(records)
        if not missing:
            return
        if self.access["local_files_only"] or is_offline():
            names = ", ".join(record.name for record in missing[:3])
            raise HubError(
                f"{names} of {self.pinned} are not in the local cache, and the Hub is offline: "
                f"run `knn-logits pull {self.pinned}` with a connection"
            )
        self._refuse_full_disk(missing)
        self._sweep()
        total, done = sum(record.bytes for record in missing), 0
        for record in missing:
            shifted = _shifted(progress, done, total)
            path = _download(self.pinned, record.name, record.bytes, self.access, shifted)
            if path.stat().st_size != record.bytes:
                self._reject(record)
            done += record.bytes
            progress("downloading", done, total)

    def reject_damaged(self, records: Sequence[FileRecord]) -> None:
        """Raises for a file that is not what the manifest says, and deletes it."""
        for record in records:
            path = self.folder / record.name
            if path.exists() and sha256(path) != record.sha256:
                self._reject(record)

    def _refuse_full_disk(self, records: Sequence[FileRecord]) -> None:
        size, free = sum(record.bytes for record in records), shutil.disk_usage(self.folder).free
        if size > free:
            raise StorageError(
                f"{self.name} needs {size / 1e6:,.0f} MB, but the disk of {self.folder.parents[2]} "
                f"has only {free / 1e6:,.0f} MB left: free some space, or set HF_HOME to another "
                "disk"
            )

    def _reject(self, record: FileRecord) -> NoReturn:
        # The manifest may be the wrong one of the two, so it is fetched again as well.
        _drop(self.folder / record.name)
        _drop(self.folder / layout.MANIFEST)
        raise DamagedError(
            f"{record.name} of {self.pinned} does not match its manifest (size or SHA-256) and "
            "was deleted: try again, use another revision, or contact its publisher"
        )

    def _sweep(self) -> None:
        """Deletes what killed downloads of this datastore have left."""
        oldest = time.time() - _ABANDONED_SECONDS
        with suppress(OSError, DatastoreError):
            for part in (self.folder.parents[1] / "blobs").glob("*.incomplete"):
                if part.stat().st_mtime < oldest:
                    delete(part)


def needed(manifest: Manifest) -> list[FileRecord]:
    """The files that a search needs. The other files can be fetched later."""
    kinds = {record.kind for record in manifest.files}
    later = layout.LATER if "index" in kinds else layout.LATER - {"keys"}
    return [record for record in manifest.files if record.kind not in later]


def _download(
    name: HubName, file: str, most: int, access: Mapping[str, Any], progress: Progress
) -> Path:
    """Fetches a file of at most `most` bytes into the cache, if it is not there."""
    from huggingface_hub import hf_hub_download

    options: dict[str, Any] = {**access, **identity(), "tqdm_class": _bar(progress)}
    with asking(name, most):
        return Path(
            hf_hub_download(name.repo, file, repo_type=REPO_TYPE, revision=name.revision, **options)
        )


def _drop(path: Path) -> None:
    """Deletes a file from the cache, so that it is fetched again."""
    blob = path.resolve()
    delete(path)
    if blob.parent == path.parent.resolve().parents[1] / "blobs":
        delete(blob)


def _shifted(progress: Progress, before: int, total: int) -> Progress:
    """Turns the progress of one of several files into the progress of all files."""
    return lambda phase, done, _: progress(phase, min(before + done, total), total)


def _bar(progress: Progress) -> type[Any]:
    """Makes a progress bar for the client that calls `progress` instead of drawing."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, *args: Any, **options: Any) -> None:
            if not is_watched():
                raise ConnectionError("it was lost for a moment")
            self._arrived = 0
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self._arrived += int(n or 0)
            progress("downloading", self._arrived, None)

    return Bar
