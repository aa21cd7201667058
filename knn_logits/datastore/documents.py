"""Documents, and how entries, tokens and documents are numbered.

An entry is a token that has something before it. Tokens stand one after another in `tokens.npy`;
a context ends where its document ends, or never when the documents were joined into one stream.
The first token of a context is no entry, so entry i is the token i + 1 + (contexts begun before).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from knn_logits.arrays import Ints
from knn_logits.datastore.files import replacing
from knn_logits.datastore.footer import PACKINGS, Footer, read_footer
from knn_logits.errors import CorpusError, DamagedError

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
# What a byte can stand for when packed with Snappy is less.
_MOST_UNPACKED = 32
# Characters. An id is a path or an address at most; the others are cut where they are shown.
_LONGEST_ID = 4096
_LONGEST_TITLE = 300
_LONGEST_URI = 2048
_LONGEST_SOURCE = 2000


@dataclass(frozen=True)
class DocumentRecord:
    """One document of a datastore.

    Attributes:
        first: Its first token's place in `tokens.npy`.
        length: Its tokens.
        id: As the corpus gave it.
        title: For people, may be missing.
        uri: Where it can be read, may be missing; never followed.
        metadata: Further fields of the corpus, as JSON.
        source: Of a pair, what the encoder read, without prefix; the document is its target.
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
        """As it is shown: a title that is a book and an address that is none are not."""
        return replace(
            self,
            title=_cut(self.title, _LONGEST_TITLE),
            source=_cut(self.source, _LONGEST_SOURCE),
            uri=self.uri if self.uri is None or len(self.uri) <= _LONGEST_URI else None,
        )


def _cut(text: str | None, length: int) -> str | None:
    return text if text is None or len(text) <= length else f"{text[:length]}…"


# Records kept once they were read: a text's words share few documents, and each asks for all.
_READ_KEPT = 4096


class Documents:
    """The table of documents, by number."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._read: dict[int, DocumentRecord] = {}
        self.first: Ints = table["first"].to_numpy().astype(np.int64)
        self.length: Ints = table["length"].to_numpy().astype(np.int64)

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

    def search(self, words: str) -> list[int]:
        """Numbers of the documents whose id, title or uri holds some words, ascending.

        Args:
            words: Looked for as they stand, capital or small.
        """
        wanted = words.casefold()
        found: set[int] = set()
        for column in ("id", "title", "uri"):
            found.update(self._numbers(column, lambda one: wanted in one.casefold()))
        return sorted(found)

    def _numbers(self, column: str, fits: Callable[[str], bool]) -> list[int]:
        found, first = [], 0
        for chunk in self._table[column].chunks:
            # The text of each distinct value once, however many documents bear it.
            known = chunk.dictionary.to_pylist()
            wanted = [place for place, one in enumerate(known) if fits(one)]
            # A document without a title has no place among the titles.
            places = pc.fill_null(chunk.indices, -1).to_numpy()
            numbers = np.flatnonzero(np.isin(places, wanted))
            found += (first + numbers).tolist()
            first += len(chunk)
        return found

    def at_token(self, position: int) -> int:
        """Number of the document that holds a token."""
        return int(np.searchsorted(self.first, position, side="right")) - 1


class Contexts:
    """Spans of tokens within which a context runs, and the entries in them.

    Args:
        first: int64 [contexts], first token of each, ascending from 0.
        tokens: Number of all tokens.
    """

    def __init__(self, first: Ints, tokens: int) -> None:
        self.first = first
        self.length: Ints = np.diff(np.append(first, tokens))
        self.first_entry: Ints = first - np.arange(len(first), dtype=np.int64)
        self.entries = int(tokens - len(first))

    @classmethod
    def of(cls, first: Ints, tokens: int, concatenate: bool) -> Contexts:
        """The contexts of documents that begin at `first`, joined into one or not."""
        return cls(first[:1] if concatenate else first, tokens)

    def entries_of(self, first: Ints, length: Ints) -> Ints:
        """Entries of the tokens in some spans of tokens.

        Args:
            first: int64 [spans], ascending.
            length: int64 [spans].

        Returns:
            int64 [entries], ascending; a context's first token is no entry.
        """
        tokens = np.concatenate(
            [np.arange(a, a + n, dtype=np.int64) for a, n in zip(first, length, strict=True)]
            or [np.empty(0, np.int64)]
        )
        context = np.searchsorted(self.first, tokens, side="right") - 1
        entries: Ints = tokens - 1 - context
        return entries[tokens != self.first[context]] if len(tokens) else tokens

    def token_of(self, entry: int) -> int:
        """Place in `tokens.npy` of an entry's token."""
        return entry + 1 + int(np.searchsorted(self.first_entry, entry, side="right")) - 1


def write_documents(path: Path, documents: Sequence[DocumentRecord]) -> None:
    """Writes the table, a row a document; with their sources where they are pairs."""
    long = next((row for row in documents if len(row.id) > _LONGEST_ID), None)
    if long is not None:
        raise CorpusError(
            f"the document {long.id[:40]!r}... has an id of {len(long.id)} characters: give it one "
            f"of at most {_LONGEST_ID}"
        )
    pairs = any(row.source is not None for row in documents)
    schema = _SCHEMA_OF_PAIRS if pairs else _SCHEMA
    columns = {name: [getattr(row, name) for row in documents] for name in schema.names}
    with replacing(path) as file:
        pq.write_table(pa.table(columns, schema=schema), file)


def _check_footer(footer: Footer, schema: Any, rows: int, size: int) -> None:
    """Refuses what `write_documents` does not write: a few bytes can stand for billions of rows."""
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
    """Bytes of the longest of some texts."""
    return int(pc.max(pc.binary_length(texts)).as_py() or 0)


def read_documents(
    path: Path, rows: int, tokens: int, *, pairs: bool = False, mapped: Any = None
) -> Documents:
    """Reads the table and checks that its documents follow one another without a gap.

    Args:
        path: The file.
        rows: Documents that it must hold, at most `tokens`.
        tokens: Tokens of all of them.
        pairs: Whether each must have a source.
        mapped: The file, open already.

    Raises:
        DamagedError: when they do not.
    """
    schema = _SCHEMA_OF_PAIRS if pairs else _SCHEMA
    try:
        source = mapped if mapped is not None else pa.memory_map(str(path))
        if rows > tokens:
            raise ValueError(f"the manifest says {rows} documents of {tokens} tokens")
        _check_footer(read_footer(source, source.size()), schema, rows, source.size())
        text = [name for name in _TEXT if name in schema.names]
        table = pq.ParquetFile(source, read_dictionary=text).read(columns=schema.names)
        # Arrow trusts what it reads: text of other bytes, places beyond a dictionary's end.
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
    # Each on its own too, since a sum of large numbers can wrap around to `tokens`.
    lengths = documents.length
    sane = bool(((lengths >= 1) & (lengths <= tokens)).all())
    if not whole or not sane or not np.array_equal(documents.first, starts):
        raise DamagedError(f"{path} does not fit the tokens; build it again")
    return documents
