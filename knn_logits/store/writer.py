"""Writes the text and the keys of a datastore, as steps of a job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.progress import Progress
from knn_logits.store.documents import DocumentRecord, Documents
from knn_logits.store.entries import Contexts
from knn_logits.store.files import array_header, replacing, write_array
from knn_logits.store.job import Job
from knn_logits.store.reading import HASH_CHUNK

SHARD_BYTES = 256 << 20


@contextmanager
def writing_text(
    job: Job,
    *,
    concatenate: bool,
    vocabulary: int,
    before: tuple[Array, Documents] | None = None,
) -> Iterator[TokenWriter]:
    """Writes documents after those of `before`; a job that continues refuses another text."""
    path = job.path("tokens")
    with replacing(path) as file:
        file.write(array_header(np.dtype(np.int32), (0,)))
        writer = TokenWriter(file, concatenate, vocabulary)
        if before is not None:
            writer.copy(*before)
        yield writer
        file.seek(0)
        file.write(array_header(np.dtype(np.int32), (writer.tokens,)))
        job.note_text(writer.identity())
    job.note(path)
    job.write("documents", writer.records)


class TokenWriter:
    """The documents that `writing_text` writes."""

    def __init__(self, file: IO[bytes], concatenate: bool, vocabulary: int) -> None:
        self._file, self._concatenate, self._vocabulary = file, concatenate, vocabulary
        self._digest = hashlib.sha256()
        self._before = 0, 0
        self.records: list[DocumentRecord] = []
        self.tokens = 0

    def copy(self, tokens: Array, documents: Documents) -> None:
        for first in range(0, len(tokens), HASH_CHUNK):
            self._file.write(np.ascontiguousarray(tokens[first : first + HASH_CHUNK]).tobytes())
        self.tokens = len(tokens)
        self.records = [documents[number] for number in range(len(documents))]
        self._before = self.tokens, self.documents

    def add(self, tokens: Sequence[int] | Array, **fields: Any) -> None:
        """Appends a document of at least one token; `DocumentRecord` has the fields."""
        array = np.asarray(tokens, dtype=np.int64)
        unknown = array[(array < 0) | (array >= self._vocabulary)]
        if len(unknown):
            raise ConfigError(
                f"the tokenizer returned token {int(unknown[0])}, but the model's vocabulary has "
                f"only {self._vocabulary} tokens: load the tokenizer that belongs to the model"
            )
        content = array.astype(np.int32).tobytes()
        self._file.write(content)
        self._digest.update(content)
        self.records.append(DocumentRecord(self.tokens, len(array), **fields))
        self.tokens += len(array)

    def describe(self, number: int, **fields: str | None) -> None:
        """Gives a document another title, uri or metadata, and keeps its tokens."""
        self.records[number] = replace(self.records[number], **fields)  # type: ignore[arg-type]

    def identity(self) -> str:
        """A digest of all that the new keys depend on: tokens, starts of documents, sources."""
        digest, (before, documents) = self._digest.copy(), self._before
        new = self.records[documents:]
        digest.update(np.array([row.first - before for row in new], dtype=np.int64).tobytes())
        for row in new:
            if row.source is not None:
                digest.update(hashlib.sha256(row.source.encode()).digest())
        return digest.hexdigest()

    @property
    def documents(self) -> int:
        return len(self.records)

    def sources(self, numbers: Sequence[int]) -> list[str]:
        return [self.records[number].source or "" for number in numbers]

    def contexts(self) -> Contexts:
        first = np.array([document.first for document in self.records], dtype=np.int64)
        contexts = Contexts(first, self.tokens, self._concatenate)
        if contexts.entries == 0:
            raise CorpusError("no document in the corpus has at least two tokens; add more text")
        return contexts


class KeyWriter:
    """Writes keys in shards, after those of an earlier run, and has the job note each shard."""

    def __init__(
        self, job: Job, dim: int, dtype: str, entries: int, *, shard_bytes: int = SHARD_BYTES
    ) -> None:
        self._job = job
        row_bytes = dim * np.dtype(dtype).itemsize
        self._rows_per_shard = max(1, shard_bytes // row_bytes)
        self._shard = len(job.shards)
        self.done = sum(shard.shape[0] for shard in job.shards if shard.shape)
        rows = min(self._rows_per_shard, max(0, entries - self.done))
        self._buffer = np.empty((rows, dim), dtype)
        self._filled = 0

    def write(self, parts: Iterable[Array], progress: Progress, total: int) -> None:
        """Writes all keys but those that an earlier run has written."""
        skipped = self.done
        for part in parts:
            self.append(part[min(skipped, len(part)) :])
            skipped -= min(skipped, len(part))
            progress("keys", self.done, total)
        self.flush()

    def append(self, keys: Array) -> None:
        while len(keys):
            fit = min(len(keys), len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + fit] = keys[:fit]
            self._filled += fit
            keys = keys[fit:]
            if self._filled == len(self._buffer):
                self.flush()

    def flush(self) -> None:
        if self._filled:
            path = self._job.path("keys", self._shard)
            write_array(path, self._buffer[: self._filled])
            self._job.note(path)
            self._shard += 1
            self.done += self._filled
            self._filled = 0
