"""The table of documents: where each one's tokens and entries are, its names, and its places.

Entries are numbered so that i is the token i + 1 + (contexts that began before it). A document is a
context, unless all were joined into one; a context's first token is no entry.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from unicodedata import normalize

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter

from knn_logits.arrays import Array, Ints
from knn_logits.errors import CorpusError, DamagedError
from knn_logits.locks import cached_property
from knn_logits.store.blocks import TokenBlock, TokenPlace, parsed
from knn_logits.store.files import first_problem, replacing

_NAMES = ("id", "title", "uri")
# The most characters of an id, which is a path or an address at most. Titles and uris may be longer
# and are cut where they are shown.
_LONGEST_ID = 4096
_LONGEST_TITLE = 300
_LONGEST_URI = 2048
_LONGEST_SOURCE = 2000

_LENGTH = Annotated[int, Field(ge=1, le=1 << 62)]
_ID = Annotated[str, Field(max_length=_LONGEST_ID)]
_STRICT = ConfigDict(strict=True)
# The length of a document, its id, its title, its uri, its metadata, and the source of a pair.
_ROW: TypeAdapter[tuple[Any, ...]] = TypeAdapter(
    tuple[_LENGTH, _ID, str | None, str | None, str | None], config=_STRICT
)
_PAIR: TypeAdapter[tuple[Any, ...]] = TypeAdapter(
    tuple[_LENGTH, _ID, str | None, str | None, str | None, str], config=_STRICT
)


@dataclass(frozen=True)
class DocumentRecord:
    """One document of a datastore: a span of tokens, and what the corpus says of it."""

    first: int  # position of its first token in `tokens.npy`
    length: int
    id: str
    title: str | None = None
    uri: str | None = None  # never followed
    metadata: str | None = None  # further fields of the corpus, as JSON
    source: str | None = None  # the text that the encoder read, without prefix

    @cached_property
    def shown(self) -> DocumentRecord:
        """The record for display, without an overlong title and without a bad address."""
        return replace(
            self,
            title=_cut(self.title, _LONGEST_TITLE),
            source=_cut(self.source, _LONGEST_SOURCE),
            uri=self.uri if self.uri is None or len(self.uri) <= _LONGEST_URI else None,
        )

    @property
    def blocks(self) -> tuple[TokenBlock, ...]:
        """Its headings, paragraphs, list items, table rows and code, in their order."""
        return parsed(self.metadata, self.length)[0]

    def place_at(self, token: int) -> TokenPlace | None:
        """The place of a token, counted from 0 in the document, if its blocks have places."""
        places = parsed(self.metadata, self.length)[1]
        number = bisect_right(places, token, key=lambda place: place.start) - 1
        return places[number] if number >= 0 else None


def _cut(text: str | None, length: int) -> str | None:
    return text if text is None or len(text) <= length else f"{text[:length]}…"


# The words of a text share few documents.
_CACHED_RECORDS = 4096


class Documents:
    """The table of documents, by number: lines of JSON, which are parsed when they are needed."""

    def __init__(
        self, data: Array, ends: Ints, lengths: Ints, row: TypeAdapter[tuple[Any, ...]]
    ) -> None:
        self._data, self._ends, self._row = data, ends, row
        self._records: dict[int, DocumentRecord] = {}
        self.length = lengths
        self.first: Ints = np.cumsum(lengths) - lengths

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, number: int) -> DocumentRecord:
        number = range(len(self))[number]
        record = self._records.get(number)
        if record is None:
            start = int(self._ends[number - 1]) if number else 0
            row = self._row.validate_json(self._data[start : self._ends[number]].tobytes())
            record = DocumentRecord(int(self.first[number]), *row)
            if len(self._records) < _CACHED_RECORDS:
                self._records[number] = record
        return record

    @cached_property
    def _columns(self) -> dict[str, list[str | None]]:
        columns: dict[str, list[str | None]] = {name: [] for name in _NAMES}
        for number in range(len(self)):
            record = self[number]
            for name, column in columns.items():
                column.append(getattr(record, name))
        return columns

    @property
    def ids(self) -> list[str]:
        return [name or "" for name in self._columns["id"]]

    def sources(self, numbers: Sequence[int]) -> list[str]:
        """The sources of some documents, which are pairs."""
        return [self[number].source or "" for number in numbers]

    def numbers_of(self, id: str) -> list[int]:
        return self._numbers("id", lambda value: value == id)

    def named(self, name: str, removed: Collection[int] = ()) -> list[int]:
        """Numbers of the documents with an id, or else with that title, or else with that uri."""
        name = normalize("NFC", name)
        matches = [
            self._numbers(column, lambda value: normalize("NFC", value) == name)
            for column in _NAMES
        ]
        left = ([number for number in numbers if number not in removed] for numbers in matches)
        return next((numbers for numbers in (*left, *matches) if numbers), [])

    def _numbers(self, column: str, fits: Callable[[str], bool]) -> list[int]:
        values = enumerate(self._columns[column])
        return [number for number, value in values if value is not None and fits(value)]

    def at_token(self, position: int) -> int:
        """Number of the document that holds the token at a position."""
        return int(self.first.searchsorted(position, side="right")) - 1


def write_documents(path: Path, documents: Sequence[DocumentRecord]) -> None:
    """Writes a line for each document: its length, its names and, of a pair, its source."""
    with replacing(path) as file:
        for row in documents:
            if len(row.id) > _LONGEST_ID:
                raise CorpusError(
                    f"the id of the document {row.id[:40]!r}... has {len(row.id)} characters: use "
                    f"an id of at most {_LONGEST_ID}"
                )
            values = [row.length, row.id, row.title, row.uri, row.metadata]
            values += [] if row.source is None else [row.source]
            file.write(f"{json.dumps(values, ensure_ascii=False)}\n".encode())


def map_documents(path: Path) -> Array:
    """Maps the table of documents into memory, uint8 [bytes]."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)


def read_documents(path: Path, data: Array, rows: int, tokens: int, *, pairs: bool) -> Documents:
    """Reads the mapped table of `rows` documents, which must cover all tokens without a gap."""
    row = _PAIR if pairs else _ROW
    try:
        ends = np.flatnonzero(data == ord("\n")) + 1
        if len(ends) != rows or rows > tokens or len(data) != (ends[-1] if rows else 0):
            raise ValueError(f"it has {len(ends)} lines for {rows} documents of {tokens} tokens")
        bounds = itertools.pairwise([0, *ends.tolist()])
        lengths = [row.validate_json(data[start:end].tobytes())[0] for start, end in bounds]
        if sum(lengths) != tokens:
            raise ValueError("its documents do not cover all tokens")
    except ValueError as error:
        raise DamagedError(
            f"{path} cannot be read: {' '.join(first_problem(error).split())[:300]}; rebuild it"
        ) from error
    return Documents(data, ends, np.array(lengths, np.int64), row)


@dataclass(frozen=True)
class Passage:
    """The text around an entry: token ids before it, its own, and after it, of one document."""

    document: DocumentRecord
    before: list[int]
    token: int
    after: list[int]


class Contexts:
    """The contexts of documents that begin at `first`, int64: one each, or one for all."""

    def __init__(self, first: Ints, tokens: int, concatenate: bool = False) -> None:
        self.first = first = first[:1] if concatenate else first
        self.length: Ints = np.diff(np.append(first, tokens))
        self.first_entry: Ints = first - np.arange(len(first), dtype=np.int64)
        self.entries = int(tokens - len(first))

    def entries_of(self, first: Ints, length: Ints) -> Ints:
        """The entries of some spans of tokens, int64, ascending as the spans do."""
        tokens = np.concatenate(
            [np.arange(a, a + n, dtype=np.int64) for a, n in zip(first, length, strict=True)]
            or [np.empty(0, np.int64)]
        )
        context = np.searchsorted(self.first, tokens, side="right") - 1
        entries: Ints = tokens - 1 - context
        return entries[tokens != self.first[context]] if len(tokens) else tokens

    def token_of(self, entry: int) -> int:
        """The position of an entry's token in `tokens.npy`."""
        return entry + int(self.first_entry.searchsorted(entry, side="right"))

    def first_states(self, window: int, stride: int) -> Ints:
        """The entries whose keys were computed from a single token, int64, ascending."""
        readable = self.length - 1
        windows = -(-readable // window) if stride == window else np.minimum(readable, 1)
        number = np.arange(windows.sum()) - np.repeat(np.cumsum(windows) - windows, windows)
        entries: Ints = np.repeat(self.first_entry, windows) + number * window
        return entries

    def document_of_entries(self, length: Ints) -> Ints:
        """The number of each entry's document, int64 [entries], for the documents' lengths."""
        documents: Ints = np.delete(np.repeat(np.arange(len(length)), length), self.first)
        return documents


def row_of_token(values: Array, entry: int) -> tuple[int, int]:
    """Which of its token's rows a row is, from 1, and their number; the rows' tokens ascend."""
    first, last = np.searchsorted(values, [values[entry], values[entry] + 1])
    return entry - int(first) + 1, int(last - first)
