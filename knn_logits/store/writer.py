"""Writes the text and the keys of a datastore, as steps of a job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.progress import Progress
from knn_logits.store.documents import DocumentRecord, Documents
from knn_logits.store.entries import Contexts
from knn_logits.store.files import array_header, discard, put_in_place, staging, write_array
from knn_logits.store.job import Job
from knn_logits.store.layout import partial_name
from knn_logits.store.reading import HASH_CHUNK

SHARD_BYTES = 256 << 20


@dataclass
class TokenWriter:
    """Writes documents after those of `before`; a job that continues refuses another text."""

    job: Job
    concatenate: bool
    vocabulary: int
    before: tuple[Array, Documents] | None = None
    tokens: int = 0  # so far
    _records: list[DocumentRecord] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.job.path("tokens")

    def __enter__(self) -> TokenWriter:
        with ExitStack() as stack:
            self._file = stack.enter_context(staging(self.path))
            self._file.write(array_header(np.dtype(np.int32), (0,)))
            if self.before is not None:
                tokens, documents = self.before
                for first in range(0, len(tokens), HASH_CHUNK):
                    part = np.ascontiguousarray(tokens[first : first + HASH_CHUNK])
                    self._file.write(part.tobytes())
                self.tokens = len(tokens)
                self._records = [documents[number] for number in range(len(documents))]
            self._staging = stack.pop_all()
        return self

    def add(self, tokens: Sequence[int] | Array, **fields: Any) -> None:
        """Appends a document of at least one token; `DocumentRecord` has the fields."""
        array = np.asarray(tokens, dtype=np.int64)
        unknown = array[(array < 0) | (array >= self.vocabulary)]
        if len(unknown):
            raise ConfigError(
                f"the tokenizer returned token {int(unknown[0])}, but the model's vocabulary has "
                f"only {self.vocabulary} tokens: load the tokenizer that belongs to the model"
            )
        self._file.write(array.astype(np.int32).tobytes())
        self._records.append(DocumentRecord(self.tokens, len(array), **fields))
        self.tokens += len(array)

    def describe(self, number: int, **fields: str | None) -> None:
        """Gives a document another title, uri or metadata, and keeps its tokens."""
        self._records[number] = replace(self._records[number], **fields)  # type: ignore[arg-type]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._staging.__exit__(kind, error, trace)
            return
        with self._staging:
            self._file.seek(0)
            self._file.write(array_header(np.dtype(np.int32), (self.tokens,)))
        try:
            self.job.note_text(self._identity())
        except BaseException:
            discard(self.path)
            raise
        put_in_place(self.path)
        self.job.note(self.path)
        self.job.write("documents", self._records)

    def _identity(self) -> str:
        """A digest of all that the new keys depend on: tokens, starts of documents, sources."""
        before, documents = (0, 0)
        if self.before is not None:
            before, documents = len(self.before[0]), len(self.before[1])
        digest = hashlib.sha256()
        with self.path.with_name(partial_name(self.path.name)).open("rb") as file:
            file.seek(len(array_header(np.dtype(np.int32), (0,))) + 4 * before)
            while part := file.read(HASH_CHUNK):
                digest.update(part)
        first = [document.first - before for document in self._records[documents:]]
        digest.update(np.array(first, dtype=np.int64).tobytes())
        for document in self._records[documents:]:
            if document.source is not None:
                digest.update(hashlib.sha256(document.source.encode()).digest())
        return digest.hexdigest()

    @property
    def documents(self) -> int:
        return len(self._records)

    def sources(self, numbers: Sequence[int]) -> list[str]:
        return [self._records[number].source or "" for number in numbers]

    def contexts(self) -> Contexts:
        first = np.array([document.first for document in self._records], dtype=np.int64)
        contexts = Contexts.of(first, self.tokens, self.concatenate)
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
