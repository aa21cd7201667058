"""The table of documents: where each one's tokens are, its names, and its pages or headings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from knn_logits.arrays import Ints
from knn_logits.errors import CorpusError, DamagedError
from knn_logits.locks import cached_property
from knn_logits.store.blocks import TokenBlock, TokenPlace, parsed
from knn_logits.store.files import replacing
from knn_logits.store.footer import check_footer

_TEXT = ["id", "title", "uri", "metadata", "source"]
_SPAN = [("first", pa.int64()), ("length", pa.int64())]
_SCHEMA = pa.schema([*_SPAN, *((name, pa.string()) for name in _TEXT[:-1])])
_SCHEMA_OF_PAIRS = _SCHEMA.append(pa.field("source", pa.string()))
_NAMES = ("id", "title", "uri")
# The most characters of an id, which is a path or an address at most. Titles and uris may be longer
# and are cut where they are shown.
_LONGEST_ID = 4096
_LONGEST_TITLE = 300
_LONGEST_URI = 2048
_LONGEST_SOURCE = 2000


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


def _whole_numbers(column: Any) -> Ints:
    """Copies a column without nulls. Arrow's `to_numpy` would import pandas, which takes long."""
    parts = [np.from_dlpack(chunk) for chunk in column.chunks]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


class Documents:
    """The table of documents, by number."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._records: dict[int, DocumentRecord] = {}
        self.first: Ints = _whole_numbers(table["first"])
        self.length: Ints = _whole_numbers(table["length"])

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, number: int) -> DocumentRecord:
        record = self._records.get(number)
        if record is None:
            record = DocumentRecord(**self._table.slice(number, 1).to_pylist()[0])
            if len(self._records) < _CACHED_RECORDS:
                self._records[number] = record
        return record

    @property
    def ids(self) -> list[str]:
        ids: list[str] = self._table["id"].to_pylist()
        return ids

    def sources(self, numbers: Sequence[int]) -> list[str]:
        """The sources of some documents, which are pairs."""
        sources: list[str] = self._table["source"].take(pa.array(numbers, pa.int64())).to_pylist()
        return sources

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

    def search(self, words: str) -> list[int]:
        """Numbers of the documents whose id, title or uri contains a string in any case."""
        folded = words.casefold()
        hits = (self._numbers(column, lambda text: folded in text.casefold()) for column in _NAMES)
        return sorted(set().union(*hits))

    def _numbers(self, column: str, fits: Callable[[str], bool]) -> list[int]:
        numbers, first = [], 0
        for chunk in self._table[column].chunks:
            # Each distinct value is searched once, however many documents have it.
            fit = pa.array([fits(value) for value in chunk.dictionary.to_pylist()], pa.bool_())
            hits = pc.indices_nonzero(pc.take(fit, chunk.indices))
            numbers += [first + number for number in hits.to_pylist()]
            first += len(chunk)
        return numbers

    def at_token(self, position: int) -> int:
        """Number of the document that holds the token at a position."""
        return int(self.first.searchsorted(position, side="right")) - 1


def write_documents(path: Path, documents: Sequence[DocumentRecord]) -> None:
    """Writes the table with one row for each document. The rows of pairs include their sources."""
    long = next((row for row in documents if len(row.id) > _LONGEST_ID), None)
    if long is not None:
        raise CorpusError(
            f"the id of the document {long.id[:40]!r}... has {len(long.id)} characters: use an "
            f"id of at most {_LONGEST_ID}"
        )
    pairs = any(row.source is not None for row in documents)
    schema = _SCHEMA_OF_PAIRS if pairs else _SCHEMA
    columns = {name: [getattr(row, name) for row in documents] for name in schema.names}
    with replacing(path) as file:
        pq.write_table(pa.table(columns, schema=schema), file)


def read_documents(
    path: Path, rows: int, tokens: int, *, pairs: bool = False, mapped: Any = None
) -> Documents:
    """Reads the table of `rows` documents, which must cover all tokens without a gap."""
    schema = _SCHEMA_OF_PAIRS if pairs else _SCHEMA
    try:
        source = mapped if mapped is not None else pa.memory_map(str(path))
        if rows > tokens:
            raise ValueError(f"the manifest says {rows} documents of {tokens} tokens")
        types = [
            (field.name, "int64" if field.type == pa.int64() else "string") for field in schema
        ]
        check_footer(source, types, rows)
        text = [name for name in _TEXT if name in schema.names]
        table = pq.ParquetFile(source, read_dictionary=text).read(columns=schema.names)
        # Arrow does not check text that is not UTF-8, or indices beyond a dictionary's end.
        table.validate(full=True)
        for field in schema:
            column = table[field.name].type
            if pa.types.is_dictionary(column):
                column = column.value_type
            if column != field.type:
                raise ValueError(f"{field.name} is of type {column}")
    except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise DamagedError(f"{path} cannot be read: {reason}; rebuild it") from error
    needed = ("first", "length", "id", "source") if pairs else ("first", "length", "id")
    if any(table[name].null_count for name in needed):
        raise DamagedError(f"{path} lacks {', '.join(needed)} of documents; rebuild it")
    lengths_of_ids = [pc.max(pc.binary_length(part.dictionary)) for part in table["id"].chunks]
    if any((length.as_py() or 0) > 4 * _LONGEST_ID for length in lengths_of_ids):
        raise DamagedError(f"{path} contains ids longer than {_LONGEST_ID} characters; rebuild it")
    documents = Documents(table)
    lengths = documents.length
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    whole = len(documents) == rows and (rows == 0 or int(ends[-1]) == tokens)
    # Each number is checked, too, since a sum of large numbers can wrap around to `tokens`.
    sane = bool(((lengths >= 1) & (lengths <= tokens)).all())
    if not whole or not sane or not np.array_equal(documents.first, ends[:-1]):
        raise DamagedError(f"the documents of {path} do not cover all tokens in order; rebuild it")
    return documents


@dataclass(frozen=True)
class Passage:
    """The text around an entry: token ids before it, its own, and after it, of one document."""

    document: DocumentRecord
    before: list[int]
    token: int
    after: list[int]
