"""The table of documents: where each one's tokens and entries are, its names, and its places.

Entries are numbered so that i is the token i + 1 + (contexts that began before it). A document is a
context, unless all were joined into one; a context's first token is no entry.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Sequence
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
    """The table of documents, by number: lines of JSON, which are parsed when they are needed.

    Its `rows` documents must cover all tokens without a gap.
    """

    def __init__(self, path: Path, rows: int, tokens: int, *, pairs: bool) -> None:
        empty = path.stat().st_size == 0
        # A plain view is faster to slice than a memory map.
        self._data: Array = np.asarray([] if empty else np.memmap(path, np.uint8, "r"), np.uint8)
        self._ends: Ints = np.append(0, np.flatnonzero(self._data == ord("\n")) + 1)
        self._row = _PAIR if pairs else _ROW
        self._records: dict[int, DocumentRecord] = {}
        lines = len(self._ends) - 1
        try:
            if lines != rows or rows > tokens or len(self._data) != self._ends[-1]:
                raise ValueError(f"it has {lines} lines for {rows} documents of {tokens} tokens")
            lengths = [self._parsed(number)[0] for number in range(rows)]
            if sum(lengths) != tokens:
                raise ValueError("its documents do not cover all tokens")
        except ValueError as error:
            raise DamagedError(
                f"{path} cannot be read: {' '.join(first_problem(error).split())[:300]}; rebuild it"
            ) from error
        self.length: Ints = np.array(lengths, np.int64)
        self.first: Ints = np.cumsum(self.length) - self.length

    def _parsed(self, number: int) -> tuple[Any, ...]:
        line = self._data[self._ends[number] : self._ends[number + 1]]
        return self._row.validate_json(line.tobytes())

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, number: int) -> DocumentRecord:
        number = range(len(self))[number]
        record = self._records.get(number)
        if record is None:
            record = DocumentRecord(int(self.first[number]), *self._parsed(number))
            if len(self._records) < _CACHED_RECORDS:
                self._records[number] = record
        return record

    @cached_property
    def _names(self) -> list[tuple[Any, ...]]:
        """The id, the title and the uri of each document."""
        return [self._parsed(number)[1:4] for number in range(len(self))]

    @property
    def ids(self) -> list[str]:
        return [id for id, _, _ in self._names]

    def sources(self, numbers: Sequence[int]) -> list[str]:
        return [self[number].source or "" for number in numbers]

    def named(self, name: str, removed: Collection[int] = ()) -> list[int]:
        """Numbers of the documents with an id, or else with that title, or else with that uri."""
        name = normalize("NFC", name)
        matches: list[list[int]] = [[], [], []]
        for number, names in enumerate(self._names):
            for numbers, value in zip(matches, names, strict=True):
                if value is not None and normalize("NFC", value) == name:
                    numbers.append(number)
        left = ([number for number in numbers if number not in removed] for numbers in matches)
        return next((numbers for numbers in (*left, *matches) if numbers), [])

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
        context = self.first.searchsorted(tokens, side="right") - 1
        return self.entries_at(tokens[tokens != self.first[context]])

    def entries_at(self, tokens: Ints) -> Ints:
        """The entries of tokens at some positions, none of which begins a context, int64."""
        entries: Ints = tokens - self.first.searchsorted(tokens, side="right")
        return entries

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


def row_of_token(values: Array, entry: int) -> tuple[int, int]:
    """Which of its token's rows a row is, from 1, and their number; the rows' tokens ascend."""
    first, last = np.searchsorted(values, [values[entry], values[entry] + 1])
    return entry - int(first) + 1, int(last - first)
