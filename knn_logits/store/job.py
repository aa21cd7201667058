"""A job that changes a datastore. It can be killed at any moment and continues where it stopped.

It writes files beside the datastore's, notes each in a journal, and replaces the manifest last.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import FailFast, Field, ValidationError

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError, DatastoreError, MismatchError, StorageError
from knn_logits.store import layout
from knn_logits.store.documents import write_documents
from knn_logits.store.files import delete, locked, rename, write_array, write_arrays, write_bytes
from knn_logits.store.manifest import Manifest, needs_text, put_manifest, read_json, read_manifest
from knn_logits.store.reading import array_facts, sha256
from knn_logits.store.records import FileRecord, Record

logger = logging.getLogger(__name__)

JobKind = Literal["build", "add", "sync", "compact", "index", "cluster", "suffixes", "tune"]


class Journal(Record):
    """The progress of a job."""

    long = ("files",)

    format: Literal["knn-logits job"] = "knn-logits job"
    kind: JobKind
    base: str | None  # checksum of the manifest that the job replaces; None for a new datastore
    generation: int = Field(ge=0, lt=1_000_000_000)  # in the names of the job's files
    plan: dict[str, str]  # all that determines the keys: a job continues only under the same plan
    text: str | None = None  # a digest of the job's tokens, once they are written
    files: Annotated[tuple[FileRecord, ...], FailFast()] = Field(default=(), strict=False)

    def has_made(self, manifest: Manifest) -> bool:
        """Whether the job has done everything, though it was killed before it cleaned up."""
        same = self.generation == manifest.generation and bool(self.files)
        return same and set(self.files) <= set(manifest.files)


@dataclass
class Job:
    """A job that is running. `begin` makes one."""

    folder: Path
    journal: Journal
    # The journal of an earlier run that finished this job, but was stopped before it cleaned up.
    ended: Journal | None = None
    overwrite: bool = False  # whether the files of an unfinished job may be deleted
    # Set once the text is written: the same job has ended before.
    repeated: bool = False

    @property
    def generation(self) -> int:
        return self.journal.generation

    @property
    def files(self) -> tuple[FileRecord, ...]:
        return self.journal.files

    @property
    def shards(self) -> list[FileRecord]:
        return [file for file in self.files if file.kind == "keys"]

    @property
    def keys(self) -> int:
        """Number of keys in the shards."""
        return sum(shard.shape[0] for shard in self.shards if shard.shape)

    def unfilled(self, rows: int) -> FileRecord | None:
        """The last shard, if it has fewer keys than a full one."""
        last = self.shards[-1] if self.shards else None
        return last if last is not None and last.shape and last.shape[0] < rows else None

    def path(self, kind: layout.Kind, shard: int | None = None) -> Path:
        return self.folder / layout.file_name(kind, self.generation, shard)

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
        changed |= {"generation": self.generation, "files": tuple(files)}
        return old.model_copy(update=changed)

    def drop(self, kind: layout.Kind) -> None:
        self._drop(self.file(kind))

    def drop_unfilled(self, rows: int) -> None:
        self._drop(self.unfilled(rows))

    def _drop(self, record: FileRecord | None) -> None:
        if record is not None:
            self._delete_but(tuple(file for file in self.files if file != record))

    def begin_again(self) -> None:
        logger.warning("the files of the unfinished job in %s are deleted", self.folder)
        self.save(text=None)
        self._delete_but(())

    def _delete_but(self, files: tuple[FileRecord, ...]) -> None:
        dropped = [file.name for file in self.files if file not in files]
        self.save(files=files)
        for name in dropped:
            delete(self.folder / name)

    def note_text(self, text: str) -> None:
        if self.ended is not None:
            self.repeated = text == self.ended.text
            if not self.repeated and self.ended.kind == "build":
                raise _taken(self.folder)
        if self.journal.text not in (None, text):
            if not self.overwrite:
                build = self.journal.kind == "build"
                way = f"delete {self.folder / layout.JOURNAL} to abandon that job"
                raise MismatchError(
                    f"the unfinished job in {self.folder} has a different corpus; pass the same "
                    "documents in the same order, or "
                    + ("start over with --overwrite" if build else way)
                )
            logger.warning("the unfinished job in %s has a different corpus", self.folder)
            self._delete_but(tuple(file for file in self.files if file.kind == "checks"))
        self.save(text=text)

    def write(
        self, kind: layout.Kind, content: Any, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Writes and notes a file: an array, arrays by name, the documents, or bytes."""
        path = self.path(kind)
        if isinstance(content, np.ndarray):
            write_array(path, content)
        elif isinstance(content, Mapping):
            write_arrays(path, content, metadata or {})
        elif isinstance(content, bytes):
            write_bytes(path, content)
        else:
            write_documents(path, content)
        self.note(path)

    def write_shard(self, path: Path, keys: Array) -> None:
        """Writes and notes a shard, which may replace one with fewer keys.

        That one is kept until the journal names the new one. A process that is killed in between
        loses no keys.
        """
        kept = path.with_name(layout.kept_name(path.name))
        if path.exists():
            rename(path, kept)
        write_array(path, keys)
        self.note(path)
        delete(kept)

    def note(self, path: Path) -> FileRecord:
        """Records a complete file, which may replace an earlier one of its name."""
        record = record_file(path)
        self.save(files=(*(file for file in self.files if file.name != path.name), record))
        return record

    def save(self, **fields: Any) -> None:
        journal = self.journal.model_copy(update=fields)
        write_bytes(self.folder / layout.JOURNAL, journal.model_dump_json(indent=1).encode())
        self.journal = journal

    def commit(
        self, old: Manifest, *, without: Collection[layout.Kind] = (), **changed: Any
    ) -> None:
        """Writes the manifest that `manifest` makes, and deletes all files that it lacks."""
        manifest = self.manifest(old, without=without, **changed)
        if not put_manifest(self.folder, manifest):
            return
        try:
            _clear(self.folder, _names(manifest))
        except StorageError as error:
            logger.warning("%s is finished, but old files are left: %s", self.folder, error)

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
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            raise NotADirectoryError(20, "not a folder")
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from error
    job: Job | None = None
    try:
        with locked(folder):
            job = _open(folder, kind, dict(plan), overwrite=overwrite)
            try:
                yield job
            except BaseException as error:
                if isinstance(error, Exception) and not job.shards:
                    job.give_up()
                raise
    finally:
        if is_new and (job is None or not (folder / layout.JOURNAL).exists()):
            with suppress(OSError):
                if {entry.name for entry in folder.iterdir()} <= {layout.LOCK}:
                    (folder / layout.LOCK).unlink(missing_ok=True)
                    folder.rmdir()


def _open(folder: Path, kind: JobKind, plan: dict[str, str], *, overwrite: bool) -> Job:
    names = _refuse_foreign(folder)
    manifest = None
    if layout.MANIFEST in names:
        try:
            manifest = read_manifest(folder)
        except DamagedError:
            if kind != "build":
                raise
    if manifest is not None and kind not in ("build", "tune"):
        needs_text(manifest, folder, "a suffix index" if kind == "suffixes" else f"`{kind}`")
    base = manifest.checksum if manifest else None
    earlier, ended = _read_journal(folder, base), None
    same = earlier is not None and (earlier.kind, earlier.plan) == (kind, plan)
    if earlier is not None and earlier.base != base:
        if same and manifest is not None and not overwrite and earlier.has_made(manifest):
            ended = earlier
        earlier = None
    if kind == "build" and layout.MANIFEST in names and not overwrite and ended is None:
        raise _taken(folder)
    # No part of an incomplete index can be used.
    if earlier is not None and not (same and kind != "index"):
        if kind == "build" and not overwrite:
            raise MismatchError(_difference(folder, earlier, plan))
        logger.warning("the unfinished %s in %s is discarded", earlier.kind, folder)
        earlier = None
    whole = _whole_files(folder, earlier) if earlier else ()
    journal = Journal(
        kind=kind, base=base, generation=manifest.generation + 1 if manifest else 0, plan=plan
    )
    if earlier and whole:
        journal = earlier.model_copy(update={"files": whole})
    _clear(folder, {file.name for file in whole} | (_names(manifest) if manifest else set()))
    job = Job(folder, journal, ended=ended, overwrite=overwrite)
    if job.keys:
        logger.warning("continuing the unfinished %s, which has %d keys", kind, job.keys)
    job.save()
    return job


def _names(manifest: Manifest) -> set[str]:
    return {file.name for file in manifest.files} | {layout.MANIFEST}


def check_target(folder: Path, *, overwrite: bool) -> None:
    """Refuses a folder that a build cannot write, before hours of work."""
    try:
        if folder.exists():
            names = _refuse_foreign(folder)
            if not overwrite and layout.MANIFEST in names and layout.JOURNAL not in names:
                raise _taken(folder)
        above = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(above, os.W_OK):
            raise PermissionError(errno.EACCES, f"no permission to write into {above}")
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError | ValueError) -> DatastoreError:
    reason = getattr(error, "strerror", None) or error
    return DatastoreError(f"{folder} cannot be used: {reason}; choose another folder")


def _taken(folder: Path) -> DatastoreError:
    return DatastoreError(
        f"{folder} already contains a datastore; pass --overwrite (overwrite=True) to replace it, "
        "or add to it with `knn-logits add`"
    )


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
    for name in {**plan, **journal.plan}:
        old, new = journal.plan.get(name), plan.get(name)
        if old != new:
            return (
                f"{folder} holds an unfinished build with other settings: its {name} is {old}, "
                f"and here it is {new}; give the same to continue, or --overwrite to start again"
            )
    return f"{folder} holds an unfinished {journal.kind}; give --overwrite to start again"


def _whole_files(folder: Path, journal: Journal) -> tuple[FileRecord, ...]:
    """The files of an earlier run up to the first that differs from the journal."""

    def is_whole(record: FileRecord) -> bool:
        path = folder / record.name
        kept = path.with_name(layout.kept_name(path.name))
        with suppress(OSError, ValueError):
            if record.kind is None or path.is_symlink() or kept.is_symlink():
                return False
            if kept.exists() and not (path.exists() and record_file(path) == record):
                rename(kept, path)
            return record_file(path) == record
        return False

    return tuple(takewhile(is_whole, journal.files))


def _refuse_foreign(folder: Path) -> set[str]:
    names = {entry.name for entry in folder.iterdir()}
    foreign = sorted(name for name in names if not layout.is_ours(name))
    if foreign:
        raise DatastoreError(
            f"{folder} contains other files ({', '.join(foreign[:3])}); choose an empty folder"
        )
    return names


def _clear(folder: Path, names: set[str]) -> None:
    """Deletes the files of a datastore's folder but those of some names, and the journal last."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == layout.JOURNAL):
        if layout.is_ours(path.name) and path.name not in names | {layout.LOCK}:
            delete(path)


def leftovers(folder: Path, manifest: Manifest) -> list[str]:
    """Lists the files of earlier states or unfinished jobs, which the manifest does not name."""
    current = _names(manifest) | {layout.LOCK}
    names = (entry.name for entry in folder.iterdir())
    return sorted(name for name in names if layout.is_ours(name) and name not in current)


def record_file(path: Path) -> FileRecord:
    """Records the size, shape and hash of a file, which is read back from the disk."""
    dtype, shape = array_facts(path)[:2] if path.suffix == ".npy" else (None, None)
    size = path.stat().st_size
    return FileRecord(name=path.name, dtype=dtype, shape=shape, bytes=size, sha256=sha256(path))
