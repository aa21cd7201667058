"""Writes the text and the keys of a datastore, as steps of a job."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.store.documents import DocumentRecord, Documents
from knn_logits.store.entries import Contexts
from knn_logits.store.files import array_header, replacing
from knn_logits.store.job import Job
from knn_logits.store.reading import HASH_CHUNK

SHARD_BYTES = 256 << 20
# A shard that is not full is saved this often, for a model that takes hours to fill it.
_SAVE_SECONDS = 60


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


def shard_rows(dim: int, dtype: str, shard_bytes: int = SHARD_BYTES) -> int:
    """Number of keys of a shard; the last one may have fewer."""
    return max(1, shard_bytes // (dim * np.dtype(dtype).itemsize))


def in_shards(parts: Iterable[Array], rows: int, seconds: float = math.inf) -> Iterator[Array]:
    """Yields the rows of some arrays, `rows` at a time, in a buffer that is used again.

    After `seconds`, the rows of an unfilled buffer are yielded as well.
    """
    buffer, filled, yielded = None, 0, time.monotonic()
    for part in parts:
        if buffer is None:
            buffer = np.empty((rows, *part.shape[1:]), part.dtype)
        while len(part):
            fit = part[: rows - filled]
            buffer[filled : filled + len(fit)] = fit
            filled, part = filled + len(fit), part[len(fit) :]
            if filled == rows:
                yield buffer
                filled = 0
        if filled and time.monotonic() - yielded >= seconds:
            yield buffer[:filled]
            yielded = time.monotonic()
    if buffer is not None and filled:
        yield buffer[:filled]


def write_keys(
    job: Job,
    parts: Iterable[Array],
    rows: int,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Writes keys in shards, after the `job.keys` of an earlier run, and notes each shard."""
    number, begun = len(job.shards), job.unfilled(rows)
    earlier = [] if begun is None else [np.load(job.folder / begun.name)]
    number -= len(earlier)

    def counted() -> Iterator[Array]:
        for part in parts:
            if earlier:
                yield earlier.pop()
            yield part
            advance(len(part))

    for keys in in_shards(counted(), rows, _SAVE_SECONDS):
        job.write_shard(job.path("keys", number), keys)
        number += len(keys) == rows
