"""Writing a datastore: first the tokens, then the keys in shards, the manifest last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from knn_logits.datastore import layout
from knn_logits.datastore.documents import Contexts, DocumentRecord, write_documents
from knn_logits.datastore.files import (
    array_header,
    replacing,
    sha256,
    write_array,
    write_bytes,
)
from knn_logits.datastore.manifest import FileRecord
from knn_logits.errors import ConfigError, CorpusError, DatastoreError
from knn_logits.neighbors import Array

SHARD_BYTES = 256 << 20


def prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """Makes a folder ready for a build, and marks it as unfinished.

    Raises:
        DatastoreError: when it holds something else, or a datastore and `overwrite` is False.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = _refuse_foreign(folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DatastoreError(f"cannot use {folder}: {reason}; choose another") from error
    if names and not overwrite:
        what = "a datastore" if layout.MANIFEST in names else "an unfinished build"
        raise DatastoreError(f"{folder} already holds {what}; pass --overwrite to replace it")
    # The manifest first: without it, what is left is no datastore.
    for name in sorted(names, key=lambda name: name != layout.MANIFEST):
        (folder / name).unlink()
    write_bytes(folder / layout.BUILDING, json.dumps({"state": "building"}).encode())


@contextmanager
def building(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Gives a folder to build in, which becomes `folder` once the build is done.

    A datastore that is to be replaced stays until then. A failed build is cleared away; an
    interrupted one leaves what it has, marked as unfinished.

    Yields:
        Where to write.

    Raises:
        DatastoreError: when the folder cannot be used.
    """
    folder = folder.resolve()
    replaces = overwrite and (folder / layout.MANIFEST).is_file()
    place = folder.with_name(folder.name + ".new") if replaces else folder
    if replaces:
        _refuse_foreign(folder)
    is_new = not place.exists()
    prepare_folder(place, overwrite=overwrite)
    try:
        yield place
        if replaces:
            old = folder.with_name(folder.name + ".old")
            folder.rename(old)
            place.rename(folder)
            _clear(old, whole=True)
    except Exception:
        _clear(place, whole=is_new)
        raise


def _clear(folder: Path, *, whole: bool) -> None:
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if layout.is_ours(path.name):
                path.unlink(missing_ok=True)
        if whole:
            folder.rmdir()


def _refuse_foreign(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in names if not layout.is_ours(name)]
    if foreign:
        raise DatastoreError(
            f"{folder} holds other files ({', '.join(foreign[:3])}); choose an empty folder"
        )
    return names


class TokenWriter:
    """Writes `tokens.npy` and `documents.parquet`, a document at a time.

    Args:
        folder: A prepared folder.
        concatenate: Whether contexts run across documents.
        vocabulary: Token ids must lie below it.
    """

    def __init__(self, folder: Path, *, concatenate: bool, vocabulary: int) -> None:
        self._folder = folder
        self._concatenate = concatenate
        self._vocabulary = vocabulary
        self._documents: list[DocumentRecord] = []
        self._tokens = 0
        self._replacing = replacing(folder / layout.TOKENS)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> TokenWriter:
        self._file = self._replacing.__enter__()
        self._file.write(array_header(np.dtype(np.int32), (0,)))
        return self

    def add(
        self,
        tokens: Sequence[int],
        *,
        id: str,
        title: str | None = None,
        uri: str | None = None,
        metadata: str | None = None,
    ) -> None:
        """Appends a document of at least one token.

        Raises:
            ConfigError: when a token is not in the model's vocabulary.
        """
        assert self._file is not None
        array = np.asarray(tokens, dtype=np.int64)
        unknown = array[(array < 0) | (array >= self._vocabulary)]
        if len(unknown):
            raise ConfigError(
                f"the tokenizer gave the token {int(unknown[0])}, the model knows "
                f"{self._vocabulary}: load the tokenizer that belongs to the model"
            )
        self._file.write(array.astype(np.int32).tobytes())
        self._documents.append(DocumentRecord(self._tokens, len(array), id, title, uri, metadata))
        self._tokens += len(array)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            assert self._file is not None
            self._file.seek(0)
            self._file.write(array_header(np.dtype(np.int32), (self._tokens,)))
        self._replacing.__exit__(kind, error, trace)
        if error is None:
            write_documents(self._folder / layout.DOCUMENTS, self._documents)

    @property
    def documents(self) -> int:
        """Documents so far."""
        return len(self._documents)

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self._tokens

    def contexts(self) -> Contexts:
        """The spans in which contexts run.

        Raises:
            CorpusError: when they hold no entry, since no document has two tokens.
        """
        first = np.array([document.first for document in self._documents], dtype=np.int64)
        contexts = Contexts(first[:1] if self._concatenate else first, self._tokens)
        if contexts.entries == 0:
            raise CorpusError("the corpus has no document of two tokens or more; give more text")
        return contexts


class KeyWriter:
    """Writes keys in shards of about 256 MB; a shard appears when it is whole."""

    def __init__(
        self, folder: Path, dim: int, dtype: str, entries: int, *, shard_bytes: int = SHARD_BYTES
    ) -> None:
        self.dim = dim
        self._folder = folder
        row_bytes = dim * np.dtype(dtype).itemsize
        self._rows_per_shard = max(1, shard_bytes // row_bytes)
        self._buffer = np.empty((min(self._rows_per_shard, entries), dim), dtype)
        self._filled = 0
        self._written = 0

    def append(self, keys: Array) -> None:
        """Appends keys, [rows, dim]."""
        while len(keys):
            taken = min(len(keys), len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + taken] = keys[:taken]
            self._filled += taken
            keys = keys[taken:]
            if self._filled == self._rows_per_shard:
                self.flush()

    def flush(self) -> None:
        """Writes what is buffered as a shard."""
        if self._filled:
            path = self._folder / layout.keys_name(self._written)
            write_array(path, self._buffer[: self._filled])
            self._written += 1
            self._filled = 0


def record_files(folder: Path, known: Iterable[FileRecord] = ()) -> tuple[FileRecord, ...]:
    """Size, shape and hash of every file of a datastore, as the manifest keeps them.

    Args:
        folder: The datastore's folder.
        known: Records of files that have not changed, which are not hashed again.
    """
    unchanged = {record.name: record for record in known}
    records = []
    for path in sorted(folder.iterdir()):
        name = path.name
        if not layout.is_ours(name) or name in (layout.MANIFEST, layout.BUILDING):
            continue
        if name in unchanged:
            records.append(unchanged[name])
            continue
        records.append(record_file(name, path))
    return tuple(records)


def record_file(name: str, path: Path) -> FileRecord:
    """Size, shape and hash of a file that is, or will be, called `name`."""
    dtype, shape = _array_facts(path) if name.endswith(".npy") else (None, None)
    size = path.stat().st_size
    return FileRecord(name=name, dtype=dtype, shape=shape, bytes=size, sha256=sha256(path))


def _array_facts(path: Path) -> tuple[str, tuple[int, ...]]:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return str(dtype), shape


def mark_finished(folder: Path) -> None:
    """Removes the mark of an unfinished build, once the manifest is there."""
    (folder / layout.BUILDING).unlink(missing_ok=True)
