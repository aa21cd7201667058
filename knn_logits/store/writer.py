"""Writes the text and the keys of a datastore, as steps of a job."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.store.documents import Contexts, DocumentRecord, Documents
from knn_logits.store.files import array_header, replacing, write_data
from knn_logits.store.job import Job

# The most bytes of a shard, and those of the first.
SHARD_BYTES = 256 << 20
_FIRST_BYTES = 1 << 20


@contextmanager
def writing_text(
    job: Job, *, concatenate: bool, vocabulary: int, before: tuple[Array, Documents] | None = None
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
        self.records: list[DocumentRecord] = []
        self.tokens = 0

    def copy(self, tokens: Array, documents: Documents) -> None:
        write_data(self._file, tokens)
        self.tokens = len(tokens)
        self.records = [documents[number] for number in range(len(documents))]

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

    def identity(self) -> str:
        """A digest of all that the new keys depend on: tokens, starts of documents, sources."""
        digest = self._digest.copy()
        digest.update(repr([(row.first, row.source) for row in self.records]).encode())
        return digest.hexdigest()

    def sources(self, numbers: Sequence[int]) -> list[str]:
        return [self.records[number].source or "" for number in numbers]

    def contexts(self) -> Contexts:
        first = np.array([document.first for document in self.records], dtype=np.int64)
        contexts = Contexts(first, self.tokens, self._concatenate)
        if contexts.entries == 0:
            raise CorpusError("no document in the corpus has at least two tokens; add more text")
        return contexts


def shard_rows(row_bytes: int, done: int) -> int:
    """Number of keys of the shard after `done` keys: few at first, and at most a quarter more.

    A killed job loses the shard that it has begun.
    """
    size = min(SHARD_BYTES, max(_FIRST_BYTES, done * row_bytes // 4))
    return max(1, size // row_bytes)


def write_keys(
    job: Job, parts: Iterable[Array], advance: Callable[[int], None] = lambda _: None
) -> None:
    """Writes keys in shards, after the `job.keys` of an earlier run, and notes each shard."""
    filled = (part for part in parts if len(part))
    part = next(filled, None)
    while part is not None:
        dtype, row, written = part.dtype, part.shape[1:], 0
        rows, path = shard_rows(part[0].nbytes, job.keys), job.path("keys", len(job.shards))
        with replacing(path) as file:
            file.write(array_header(dtype, (0, *row)))
            while part is not None:
                fit, part = part[: rows - written], part[rows - written :]
                write_data(file, fit)
                written += len(fit)
                advance(len(fit))
                if written == rows:
                    break
                part = next(filled, None)
            file.seek(0)
            file.write(array_header(dtype, (written, *row)))
        # A shard is noted before the next keys are computed.
        job.note(path)
        if part is not None and not len(part):
            part = next(filled, None)
