"""A job that changes a datastore. It can be killed at any moment and continues where it stopped.

It writes files beside the datastore's, notes each in a journal, and replaces the manifest last.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import FailFast, Field, ValidationError

from knn_logits.errors import DamagedError, DatastoreError, MismatchError, StorageError
from knn_logits.store import layout
from knn_logits.store.documents import write_documents
from knn_logits.store.files import (
    array_facts,
    delete,
    locked,
    sha256,
    write_array,
    write_arrays,
    write_bytes,
)
from knn_logits.store.manifest import Manifest, needs_text, read_json, read_manifest
from knn_logits.store.records import FileRecord, Record

logger = logging.getLogger(__name__)

JobKind = Literal["build", "add", "sync", "compact", "index", "cluster", "suffixes", "tune"]


class Journal(Record):
    """The progress of a job."""

    long = ("files",)

    kind: JobKind
    base: str | None  # checksum of the manifest that the job replaces; None for a new datastore
    generation: int = Field(ge=0, lt=1_000_000_000)  # in the names of the job's files
    plan: dict[str, str]  # all that determines the keys: a job continues only under the same plan
    text: str | None = None  # a digest of the job's tokens, once they are written
    files: Annotated[tuple[FileRecord, ...], FailFast()] = Field(default=(), strict=False)


@dataclass
class Job:
    """A job that is running. `begin` makes one."""

    folder: Path
    journal: Journal
    overwrite: bool = False  # whether the files of an unfinished job may be deleted

    @property
    def files(self) -> tuple[FileRecord, ...]:
        return self.journal.files

    @property
    def shards(self) -> list[FileRecord]:
        return [file for file in self.files if file.kind == "keys"]

    @property
    def keys(self) -> int:
        return sum(shard.shape[0] for shard in self.shards if shard.shape)

    def path(self, kind: layout.Kind, shard: int | None = None) -> Path:
        return self.folder / layout.file_name(kind, self.journal.generation, shard)

    def file(self, kind: layout.Kind) -> FileRecord | None:
        return next((file for file in self.files if file.kind == kind), None)

    def manifest(
        self, old: Manifest, *, without: Collection[layout.Kind] = (), **changed: Any
    ) -> Manifest:
        """The manifest of an earlier state, changed, with the job's files in place of its own."""
        replaced = {file.kind for file in self.files} - {"keys"} | set(without)
        unchanged = [file for file in old.files if file.kind not in replaced]
        files = [*(file for file in unchanged if file not in self.files), *self.files]
        files.sort(key=lambda file: layout.KINDS.index(file.kind or "checks"))
        changed |= {"generation": self.journal.generation, "files": tuple(files)}
        return old.model_copy(update=changed)

    def drop(self, *kinds: layout.Kind) -> None:
        dropped = [file for file in self.files if file.kind in kinds]
        if dropped:
            self.save(files=tuple(file for file in self.files if file not in dropped))
        for file in dropped:
            delete(self.folder / file.name)

    def begin_again(self) -> None:
        logger.warning(f"the files of the unfinished job in {self.folder} are deleted")
        self.save(text=None)
        self.drop(*layout.KINDS)

    def note_text(self, text: str) -> None:
        """Notes a digest of the text, and refuses another than that of an earlier run."""
        if self.journal.text not in (None, text):
            if not self.overwrite:
                raise MismatchError(
                    f"the unfinished job in {self.folder} has a different corpus; pass the same "
                    "documents in the same order, or start over with --overwrite"
                )
            logger.warning(f"the unfinished job in {self.folder} has a different corpus")
            self.drop(*(kind for kind in layout.KINDS if kind != "checks"))
        self.save(text=text)

    def write(
        self, kind: layout.Kind, content: Any, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Writes and notes a file: an array, arrays by name, or the documents."""
        path = self.path(kind)
        if isinstance(content, np.ndarray):
            write_array(path, content)
        elif isinstance(content, Mapping):
            write_arrays(path, content, metadata or {})
        else:
            write_documents(path, content)
        self.note(path)

    def note(self, path: Path) -> None:
        """Records a complete file, which may replace an earlier one of its name."""
        others = (file for file in self.files if file.name != path.name)
        self.save(files=(*others, record_file(path)))

    def save(self, **fields: Any) -> None:
        journal = self.journal.model_copy(update=fields)
        write_bytes(self.folder / layout.JOURNAL, journal.model_dump_json(indent=1).encode())
        self.journal = journal

    def commit(self, old: Manifest, **changed: Any) -> None:
        """Writes the manifest that `manifest` makes, and deletes all files that it lacks."""
        manifest = self.manifest(old, **changed)
        manifest.write(self.folder)
        try:
            _clear(self.folder, _names(manifest))
        except StorageError as error:
            logger.warning(f"{self.folder} is finished, but old files are left: {error}")

    def give_up(self) -> None:
        # A manifest that cannot be read now may still be good. Nothing is deleted then.
        with suppress(OSError, DatastoreError):
            exists = layout.MANIFEST in {entry.name for entry in self.folder.iterdir()}
            _clear(self.folder, _names(read_manifest(self.folder)) if exists else set())


@contextmanager
def begin(
    folder: Path, kind: JobKind, plan: Mapping[str, str], *, overwrite: bool = False
) -> Iterator[Job]:
    """Starts a job, or continues it where an earlier run stopped."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise DatastoreError(
            f"{folder} cannot be used: {getattr(error, 'strerror', None) or error}; choose "
            "another folder"
        ) from error
    held = False
    try:
        with locked(folder):
            held = True
            job = _open(folder, kind, dict(plan), overwrite=overwrite)
            try:
                yield job
            except Exception:
                if not job.shards:
                    job.give_up()
                raise
    finally:
        with suppress(OSError):
            if held and [entry.name for entry in folder.iterdir()] == [layout.LOCK]:
                (folder / layout.LOCK).unlink()
                folder.rmdir()


def _open(folder: Path, kind: JobKind, plan: dict[str, str], *, overwrite: bool) -> Job:
    names, manifest = {entry.name for entry in folder.iterdir()}, None
    foreign = sorted(name for name in names if not layout.is_ours(name))
    if foreign:
        raise DatastoreError(
            f"{folder} contains other files ({', '.join(foreign[:3])}); choose an empty folder"
        )
    if layout.MANIFEST in names:
        if kind == "build" and not overwrite:
            raise DatastoreError(
                f"{folder} already contains a datastore; pass --overwrite (overwrite=True) to "
                "replace it, or add to it with `knn-logits add`"
            )
        try:
            manifest = read_manifest(folder)
        except DamagedError:
            if kind != "build":
                raise
    if manifest is not None and kind not in ("build", "tune"):
        needs_text(manifest, folder, "a suffix index" if kind == "suffixes" else f"`{kind}`")
    base = manifest.checksum if manifest else None
    number = manifest.generation + 1 if manifest else 0
    journal = Journal(kind=kind, base=base, generation=number, plan=plan)
    earlier = _read_journal(folder, base)
    if earlier is not None and earlier.base == base:
        if (earlier.kind, earlier.plan) == (kind, plan):
            if whole := _whole_files(folder, earlier):
                journal = earlier.model_copy(update={"files": whole})
        elif kind == "build" and not overwrite:
            raise MismatchError(_difference(folder, earlier, plan))
        else:
            logger.warning(f"the unfinished {earlier.kind} in {folder} is discarded")
    kept = {file.name for file in journal.files}
    _clear(folder, kept | (_names(manifest) if manifest else set()))
    job = Job(folder, journal, overwrite)
    if job.keys:
        logger.warning(f"continuing the unfinished {kind}, which has {job.keys} keys")
    job.save()
    return job


def _names(manifest: Manifest) -> set[str]:
    return {file.name for file in manifest.files} | {layout.MANIFEST}


def _read_journal(folder: Path, base: str | None) -> Journal | None:
    path = folder / layout.JOURNAL
    if not path.exists():
        return None
    try:
        return Journal.model_validate(read_json(path))
    except (ValidationError, DamagedError):
        return Journal(kind="build", base=base, generation=0, plan={"format": "unknown"})


def unfinished_precision(folder: Path) -> str | None:
    """The model precision of the unfinished job in a folder; None without such a job."""
    journal = _read_journal(folder, None)
    return None if journal is None else journal.plan.get("model precision")


def _difference(folder: Path, journal: Journal, plan: dict[str, str]) -> str:
    pairs = ((name, journal.plan.get(name), plan.get(name)) for name in {**plan, **journal.plan})
    name, old, new = next((pair for pair in pairs if pair[1] != pair[2]), ("kind", "another", None))
    return (
        f"{folder} holds an unfinished build with other settings: its {name} is {old}, and here it "
        f"is {new}; give the same to continue, or --overwrite to start again"
    )


def _whole_files(folder: Path, journal: Journal) -> tuple[FileRecord, ...]:
    """The files of an earlier run up to the first that differs from the journal."""

    def is_whole(record: FileRecord) -> bool:
        path = folder / record.name
        with suppress(OSError, ValueError):
            return record.kind is not None and not path.is_symlink() and record_file(path) == record
        return False

    return tuple(takewhile(is_whole, journal.files))


def _clear(folder: Path, names: set[str]) -> None:
    """Deletes the files of a datastore's folder but those of some names, and the journal last."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == layout.JOURNAL):
        if layout.is_ours(path.name) and path.name not in names | {layout.LOCK}:
            delete(path)


def record_file(path: Path) -> FileRecord:
    """Records the size, shape and hash of a file, which is read back from the disk."""
    dtype, shape = array_facts(path)[:2] if path.suffix == ".npy" else (None, None)
    size = path.stat().st_size
    return FileRecord(name=path.name, dtype=dtype, shape=shape, bytes=size, sha256=sha256(path))
