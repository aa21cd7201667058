"""The table of documents, and the numbering of entries, tokens and documents.

An entry is a token that another token precedes. `tokens.npy` holds all tokens one after another.
Each document is a context, unless the documents were joined into one stream. The first token of a
context is not an entry. So entry i is the token i + 1 + (contexts that began before it).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from knn_logits.arrays import Ints
from knn_logits.errors import CorpusError, DamagedError
from knn_logits.store.files import replacing
from knn_logits.store.footer import PACKINGS, Footer, read_footer

_SCHEMA = pa.schema(
    [
        ("first", pa.int64()),
        ("length", pa.int64()),
        ("id", pa.string()),
        ("title", pa.string()),
        ("uri", pa.string()),
        ("metadata", pa.string()),
    ]
)
_SCHEMA_OF_PAIRS = _SCHEMA.append(pa.field("source", pa.string()))
_TEXT = ["id", "title", "uri", "metadata", "source"]
# Snappy unpacks a byte to fewer bytes than this.
_MOST_UNPACKED = 32
# The most characters of an id, which is a path or an address at most. Titles and uris may be longer
# and are cut where they are shown.
_LONGEST_ID = 4096
_LONGEST_TITLE = 300
_LONGEST_URI = 2048
_LONGEST_SOURCE = 2000


@dataclass(frozen=True)
class DocumentRecord:
    """One document of a datastore.

    Attributes:
        first: Position of the document's first token in `tokens.npy`.
        length: Number of the document's tokens.
        id: The id that the corpus gave it.
        title: A title for people, if there is one.
        uri: The address of the document, if there is one. It is never followed.
        metadata: Further fields of the corpus, as JSON.
        source: The text that the encoder read, without prefix, if the document is the target of a
            pair.
    """

    first: int
    length: int
    id: str
    title: str | None = None
    uri: str | None = None
    metadata: str | None = None
    source: str | None = None

    @property
    def shown(self) -> DocumentRecord:
        """Returns the record for display, without an overlong title and without a bad address."""
        return replace(
            self,
            title=_cut(self.title, _LONGEST_TITLE),
            source=_cut(self.source, _LONGEST_SOURCE),
            uri=self.uri if self.uri is None or len(self.uri) <= _LONGEST_URI else None,
        )


def _cut(text: str | None, length: int) -> str | None:
    return text if text is None or len(text) <= length else f"{text[:length]}…"


# Records that are kept once they were read, since the words of a text share few documents.
_READ_KEPT = 4096


def _whole_numbers(column: Any) -> Ints:
    """Copies a column without nulls. Arrow's `to_numpy` would import pandas, which takes long."""
    parts = [np.from_dlpack(chunk) for chunk in column.chunks]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


class Documents:
    """The table of documents, by number."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._read: dict[int, DocumentRecord] = {}
        self.first: Ints = _whole_numbers(table["first"])
        self.length: Ints = _whole_numbers(table["length"])

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, number: int) -> DocumentRecord:
        known = self._read.get(number)
        if known is None:
            known = DocumentRecord(**self._table.slice(number, 1).to_pylist()[0])
            if len(self._read) < _READ_KEPT:
                self._read[number] = known
        return known

    @property
    def ids(self) -> list[str]:
        """The ids of all documents, in order."""
        found: list[str] = self._table["id"].to_pylist()
        return found

    def sources(self, numbers: Sequence[int]) -> list[str]:
        """The sources of some documents, which are pairs."""
        found: list[str] = self._table["source"].take(pa.array(numbers, pa.int64())).to_pylist()
        return found

    def numbers_of(self, id: str) -> list[int]:
        """Numbers of the documents with an id, ascending."""
        return self._numbers("id", lambda one: one == id)

    def numbers_titled(self, title: str) -> list[int]:
        """Numbers of the documents with a title, ascending."""
        return self._numbers("title", lambda one: one == title)

    def numbers_at(self, uri: str) -> list[int]:
        """Numbers of the documents with a uri, ascending."""
        return self._numbers("uri", lambda one: one == uri)

    def named(self, name: str, removed: Collection[int] = ()) -> list[int]:
        """Numbers of the documents with an id, or else with that title, or else with that uri.

        Args:
            name: The id, title or uri.
            removed: Numbers of documents that count only if no other one has the name.
        """
        ways = self.numbers_of(name), self.numbers_titled(name), self.numbers_at(name)
        left = ([number for number in way if number not in removed] for way in ways)
        return next((way for way in (*left, *ways) if way), [])

    def search(self, words: str) -> list[int]:
        """Numbers of the documents whose id, title or uri contains some words, ascending.

        Args:
            words: The words, which are searched as one string. Case does not matter.
        """
        wanted = words.casefold()
        found: set[int] = set()
        for column in ("id", "title", "uri"):
            found.update(self._numbers(column, lambda one: wanted in one.casefold()))
        return sorted(found)

    def _numbers(self, column: str, fits: Callable[[str], bool]) -> list[int]:
        found, first = [], 0
        for chunk in self._table[column].chunks:
            # Each distinct value is searched once, however many documents have it.
            known = chunk.dictionary.to_pylist()
            wanted = [place for place, one in enumerate(known) if fits(one)]
            # A document without a title does not occur among the titles.
            there = np.from_dlpack(pc.cast(chunk.indices.is_valid(), pa.uint8()))
            places = np.from_dlpack(chunk.indices.drop_null())
            numbers = np.flatnonzero(there)[np.isin(places, wanted)]
            found += (first + numbers).tolist()
            first += len(chunk)
        return found

    def at_token(self, position: int) -> int:
        """Number of the document that holds the token at a position."""
        return int(np.searchsorted(self.first, position, side="right")) - 1


class Contexts:
    """The contexts of a text, which are spans of tokens, and the entries in them.

    Args:
        first: int64 [contexts], the first token of each context, ascending from 0.
        tokens: Number of all tokens.
    """

    def __init__(self, first: Ints, tokens: int) -> None:
        self.first = first
        self.length: Ints = np.diff(np.append(first, tokens))
        self.first_entry: Ints = first - np.arange(len(first), dtype=np.int64)
        self.entries = int(tokens - len(first))

    @classmethod
    def of(cls, first: Ints, tokens: int, concatenate: bool) -> Contexts:
        """Makes the contexts of documents that begin at `first`: one each, or one for all."""
        return cls(first[:1] if concatenate else first, tokens)

    def entries_of(self, first: Ints, length: Ints) -> Ints:
        """Returns the entries of the tokens in some spans of tokens.

        Args:
            first: int64 [spans], ascending.
            length: int64 [spans].

        Returns:
            int64 [entries], ascending. The first token of a context is not an entry.
        """
        tokens = np.concatenate(
            [np.arange(a, a + n, dtype=np.int64) for a, n in zip(first, length, strict=True)]
            or [np.empty(0, np.int64)]
        )
        context = np.searchsorted(self.first, tokens, side="right") - 1
        entries: Ints = tokens - 1 - context
        return entries[tokens != self.first[context]] if len(tokens) else tokens

    def token_of(self, entry: int) -> int:
        """The position of an entry's token in `tokens.npy`."""
        return entry + 1 + int(np.searchsorted(self.first_entry, entry, side="right")) - 1


def write_documents(path: Path, documents: Sequence[DocumentRecord]) -> None:
    """Writes the table with one row for each document. The rows of pairs include their sources."""
    long = next((row for row in documents if len(row.id) > _LONGEST_ID), None)
    if long is not None:
        raise CorpusError(
            f"the id of the document {long.id[:40]!r}... has {len(long.id)} characters: give it an "
            f"id of at most {_LONGEST_ID}"
        )
    pairs = any(row.source is not None for row in documents)
    schema = _SCHEMA_OF_PAIRS if pairs else _SCHEMA
    columns = {name: [getattr(row, name) for row in documents] for name in schema.names}
    with replacing(path) as file:
        pq.write_table(pa.table(columns, schema=schema), file)


def _check_footer(footer: Footer, schema: Any, rows: int, size: int) -> None:
    """Refuses tables that `write_documents` cannot have written.

    A few bytes could stand for billions of rows.
    """
    expected = [(field.name, "int64" if field.type == pa.int64() else "string") for field in schema]
    if footer.columns != expected:
        raise ValueError("columns are missing, or of another type")
    if sum(group[0] for group in footer.groups) != rows:
        raise ValueError(f"the manifest says {rows} documents")
    unpacked = 0
    for number, columns in footer.groups:
        if [one.type for one in columns] != [kind for _, kind in expected]:
            raise ValueError("columns of other types")
        if any(one.values != number for one in columns):
            raise ValueError("columns of other lengths")
        if any(one.packing not in PACKINGS.values() for one in columns):
            raise ValueError("columns packed in a way that can grow without bound")
        unpacked += sum(one.unpacked for one in columns)
    if unpacked > _MOST_UNPACKED * size:
        raise ValueError(f"{size} bytes that stand for {unpacked}")


def _longest(texts: Any) -> int:
    """The length in bytes of the longest of some texts."""
    return int(pc.max(pc.binary_length(texts)).as_py() or 0)


def read_documents(
    path: Path, rows: int, tokens: int, *, pairs: bool = False, mapped: Any = None
) -> Documents:
    """Reads the table and checks that its documents follow one another without a gap.

    Args:
        path: The file.
        rows: Number of documents that the table must hold, at most `tokens`.
        tokens: Number of tokens of all documents.
        pairs: Whether each document must have a source.
        mapped: The file, if it is already open.

    Raises:
        DamagedError: when the table is not as it must be.
    """
    schema = _SCHEMA_OF_PAIRS if pairs else _SCHEMA
    try:
        source = mapped if mapped is not None else pa.memory_map(str(path))
        if rows > tokens:
            raise ValueError(f"the manifest says {rows} documents of {tokens} tokens")
        _check_footer(read_footer(source, source.size()), schema, rows, source.size())
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
        raise DamagedError(f"{path} cannot be read: {reason}; build it again") from error
    needed = ("first", "length", "id", "source") if pairs else ("first", "length", "id")
    if any(table[name].null_count for name in needed):
        raise DamagedError(f"{path} lacks {', '.join(needed)} of documents; build it again")
    if any(_longest(chunk.dictionary) > 4 * _LONGEST_ID for chunk in table["id"].chunks):
        raise DamagedError(f"{path} holds ids longer than {_LONGEST_ID} characters; build it again")
    documents = Documents(table)
    ends = np.cumsum(documents.length)
    whole = len(documents) == rows and (rows == 0 or int(ends[-1]) == tokens)
    starts = np.concatenate([[0], ends[:-1]]) if rows else ends
    # Each number is checked, too, since a sum of large numbers can wrap around to `tokens`.
    lengths = documents.length
    sane = bool(((lengths >= 1) & (lengths <= tokens)).all())
    if not whole or not sane or not np.array_equal(documents.first, starts):
        raise DamagedError(
            f"the documents of {path} do not follow one another over all tokens; build it again"
        )
    return documents
