"""Documents, and how entries, tokens and documents are numbered.

An entry is a token that has something before it. Tokens stand one after another in `tokens.npy`;
a context ends where its document ends, or never when the documents were joined into one stream.
The first token of a context is no entry, so entry i is the token i + 1 + (contexts begun before).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from knn_logits.datastore.files import replacing
from knn_logits.errors import DamagedError

Ints = npt.NDArray[np.int64]

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
    """

    first: int
    length: int
    id: str
    title: str | None = None
    uri: str | None = None
    metadata: str | None = None


class Documents:
    """The table of documents, by number."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.first: Ints = table["first"].to_numpy().astype(np.int64)
        self.length: Ints = table["length"].to_numpy().astype(np.int64)

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, number: int) -> DocumentRecord:
        row = self._table.slice(number, 1).to_pylist()[0]
        return DocumentRecord(**row)

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

    def token_of(self, entry: int) -> int:
        """Place in `tokens.npy` of an entry's token."""
        return entry + 1 + int(np.searchsorted(self.first_entry, entry, side="right")) - 1


def write_documents(path: Path, documents: Sequence[DocumentRecord]) -> None:
    """Writes the table, a row a document."""
    columns = {name: [getattr(row, name) for row in documents] for name in _SCHEMA.names}
    with replacing(path) as file:
        pq.write_table(pa.table(columns, schema=_SCHEMA), file)


def read_documents(path: Path, rows: int, tokens: int) -> Documents:
    """Reads the table and checks that its documents follow one another without a gap.

    Raises:
        DamagedError: when they do not.
    """
    try:
        table = pq.read_table(path, schema=_SCHEMA)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedError(f"{path} cannot be read: {error}; build it again") from error
    if any(table[name].null_count for name in ("first", "length", "id")):
        raise DamagedError(f"{path} lacks places or ids of documents; build it again")
    documents = Documents(table)
    ends = np.cumsum(documents.length)
    whole = len(documents) == rows and (rows == 0 or int(ends[-1]) == tokens)
    starts = np.concatenate([[0], ends[:-1]]) if rows else ends
    # Each on its own too, since a sum of large numbers can wrap around to `tokens`.
    lengths = documents.length
    sane = bool(((lengths >= 1) & (lengths <= tokens)).all())
    if not whole or not sane or not np.array_equal(documents.first, starts):
        raise DamagedError(f"{path} does not fit tokens.npy; build it again")
    return documents
