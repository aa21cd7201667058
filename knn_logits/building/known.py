"""What a datastore holds already: which documents, by content and by id.

A document's content is its tokens and, of a pair, its source: all that keys depend on. Both are in
every datastore, so that nothing has to be kept for this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from knn_logits.arrays import Array
from knn_logits.building.steps import Cut
from knn_logits.corpus.documents import unique_id
from knn_logits.datastore.store import Datastore

# Two documents of one digest by chance: 2^-64 for four billion documents.
_DIGEST_BYTES = 16


def digest_of(tokens: Sequence[int] | Array, source: str | None) -> bytes:
    """What tells one content from another.

    Args:
        tokens: Of the document.
        source: Of a pair.
    """
    found = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=_DIGEST_BYTES)
    if source is not None:
        found.update(b"source" + source.encode())
    return found.digest()


def contents_of(store: Datastore) -> Iterator[tuple[int, str, bytes]]:
    """Number, id and digest of each document that is not removed."""
    table, removed = store.documents, set(store.manifest.removed)
    ids, pairs = table.ids, store.manifest.pairs is not None
    for number, (first, length) in enumerate(
        zip(table.first.tolist(), table.length.tolist(), strict=True)
    ):
        if number not in removed:
            source = table.sources([number])[0] if pairs else None
            yield number, ids[number], digest_of(store.tokens[first : first + length], source)


class Additions:
    """Which of some documents a datastore does not hold yet, under ids of their own.

    Args:
        store: The datastore.

    Attributes:
        there: Of each document that is there already, its id and the id it is there under.
        renamed: The ids that another document bears, and what they have become.
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
        """Those that are to be added; those without a token are none."""
        for document, ids, places in cut:
            if not ids:
                continue
            known = self._contents.get(digest_of(ids, document.source if pairs else None))
            if known is not None:
                self.there.append((document.id, known))
                continue
            if document.id in self._before:
                # The parts of one large file share an id, and go on doing so.
                if document.id not in self.renamed:
                    self.renamed[document.id] = unique_id(document.id, self._ids)
                document = replace(document, id=self.renamed[document.id])
            yield document, ids, places
