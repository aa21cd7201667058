"""Finds out which documents a datastore already has, by their content and by their id.

The content of a document is its tokens and, if it is a pair, its source. Keys depend on nothing
else. Every datastore has both, so nothing more has to be stored for this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from knn_logits.arrays import Array
from knn_logits.building.steps import Cut
from knn_logits.corpus.documents import unique_id
from knn_logits.store.datastore import Datastore

# Among four billion documents, two have the same digest by chance with probability 2^-64.
_DIGEST_BYTES = 16


def digest_of(tokens: Sequence[int] | Array, source: str | None) -> bytes:
    """Computes a digest of a document's content.

    Args:
        tokens: The document's tokens.
        source: The document's source, if it is a pair.
    """
    found = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=_DIGEST_BYTES)
    if source is not None:
        found.update(b"source" + source.encode())
    return found.digest()


def contents_of(store: Datastore) -> Iterator[tuple[int, str, bytes]]:
    """Yields the number, the id and the digest of each document that is not removed."""
    table, removed = store.documents, set(store.manifest.removed)
    ids, pairs = table.ids, store.manifest.pairs is not None
    for number, (first, length) in enumerate(
        zip(table.first.tolist(), table.length.tolist(), strict=True)
    ):
        if number not in removed:
            source = table.sources([number])[0] if pairs else None
            yield number, ids[number], digest_of(store.tokens[first : first + length], source)


class Additions:
    """Selects the documents that a datastore does not have yet, and gives each a free id.

    Args:
        store: The datastore.

    Attributes:
        there: For each document that the datastore has already: its id, and its id there.
        renamed: For each id that another document has: the id that the new document got instead.
    """

    def __init__(self, store: Datastore) -> None:
        self._contents: dict[bytes, str] = {}
        self._ids: dict[str, int] = {}
        for _, id, digest in contents_of(store):
            self._contents.setdefault(digest, id)
            self._ids[id] = 1
        self._before = frozenset(self._ids)
        self.there: list[tuple[str, str]] = []
        self.renamed: dict[str, str] = {}

    def of(self, cut: Iterator[Cut], *, pairs: bool) -> Iterator[Cut]:
        """Yields the documents to add. A document without a token is left out."""
        for document, ids, places in cut:
            if not ids:
                continue
            known = self._contents.get(digest_of(ids, document.source if pairs else None))
            if known is not None:
                self.there.append((document.id, known))
                continue
            if document.id in self._before:
                # The parts of one large file share an id, and keep sharing it.
                if document.id not in self.renamed:
                    self.renamed[document.id] = unique_id(document.id, self._ids)
                document = replace(document, id=self.renamed[document.id])
            yield document, ids, places
