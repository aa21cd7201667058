"""Fetches one commit of a datastore from the Hub, file by file, the manifest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from knn_logits.errors import DamagedError
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.store import layout
from knn_logits.store.files import delete
from knn_logits.store.hub_client import (
    LARGEST_ANSWER,
    REPO_TYPE,
    HubName,
    asking,
    identity,
    is_watched,
)
from knn_logits.store.manifest import Manifest, read_manifest
from knn_logits.store.records import FileRecord
from knn_logits.store.verification import check_file


@dataclass(frozen=True)
class Remote:
    """One commit of a datastore on the Hub. `Remote.find` makes it."""

    name: HubName
    # The folder in the cache, named by the commit, with links into the cache's blobs.
    folder: Path
    # The cache, the token, and whether the Hub may be asked.
    access: Mapping[str, Any]

    @classmethod
    def find(cls, name: HubName, **access: Any) -> Remote:
        """Fetches the manifest, or takes it from the cache if the Hub cannot be reached."""
        path = _download(name, layout.MANIFEST, LARGEST_ANSWER, access, lambda _: None)
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

    def fetch(
        self, records: Sequence[FileRecord], manifest: Manifest, progress: Progress = no_progress
    ) -> None:
        """Fetches files that are not in the cache, one after another, and checks their hashes."""
        missing = self.missing(records)
        count = counter(progress, "downloading", sum(record.bytes for record in missing))
        for record in missing:
            path = _download(self.pinned, record.name, record.bytes, self.access, count)
            try:
                check_file(path, record, manifest)
            except DamagedError:
                self._reject(record)

    def _reject(self, record: FileRecord) -> NoReturn:
        # The manifest may be the wrong one of the two, so it is fetched again as well.
        _drop(self.folder / record.name)
        _drop(self.folder / layout.MANIFEST)
        raise DamagedError(
            f"{record.name} of {self.pinned} does not match its manifest (size or SHA-256) and "
            "was deleted: try again, use another revision, or contact its publisher"
        )


def needed(manifest: Manifest) -> list[FileRecord]:
    """The files that a search needs. The other files can be fetched later."""
    later = manifest.key_shards if manifest.file("index") else []
    return [record for record in manifest.files if record not in later]


def _download(
    name: HubName, file: str, most: int, access: Mapping[str, Any], count: Callable[[int], None]
) -> Path:
    """Fetches a file of at most `most` bytes into the cache, if it is not there."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        """Counts instead of drawing."""

        def __init__(self, *args: Any, **options: Any) -> None:
            if not is_watched():
                raise ConnectionError("it was lost for a moment")
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            count(int(n or 0))

    options: dict[str, Any] = {**access, **identity(), "tqdm_class": Bar}
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
