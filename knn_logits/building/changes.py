"""The changes that given documents make to a datastore: what is new, and what does not stay."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.building.steps import Cut, document_fields
from knn_logits.corpus.documents import Document, unique_id
from knn_logits.errors import CorpusError
from knn_logits.progress import Progress
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import DocumentRecord

logger = logging.getLogger(__name__)

# Among four billion documents, two have the same digest by chance with probability 2^-64.
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Sync:
    """The result of `sync_documents`.

    Attributes:
        datastore: The datastore, opened again.
        added: Ids of the documents that are new.
        changed: Ids of the documents whose text, title, uri or metadata changed.
        removed: Ids of the documents that are gone.
        unchanged: Number of documents that did not change.
        kept: Ids of the documents that are gone, but that `keep` wanted to stay.
        tokens: Number of tokens whose keys were computed.
    """

    datastore: Datastore
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int
    kept: tuple[str, ...]
    tokens: int


class Changes:
    """The changes that given documents make to a datastore."""

    def __init__(self, store: Datastore) -> None:
        self.store = store
        self.pairs = store.manifest.pairs is not None
        self.gone: tuple[int, ...] = ()  # numbers of the documents that do not stay
        self.tokens = 0  # of the documents to add

    def new(self, cut: Iterator[Cut], progress: Progress) -> Iterator[Cut]:
        """Yields the documents to add. A document without a token is left out."""
        read = 0
        for document, ids, places in cut:
            if ids:
                read += len(ids)
                progress("tokens", read, None)
                fields = document_fields(document, places, pairs=self.pairs)
                added = self.added(document, ids, fields)
                if added is not None:
                    self.tokens += len(ids)
                    yield added, ids, places
        self.settle()

    def fields(self) -> dict[str, Any]:
        """The fields of the manifest that change."""
        base, stale = self.store.manifest, bool(self.tokens or self.gone)
        return {
            "removed": tuple(sorted({*base.removed, *self.gone})),
            "settings": base.settings.model_copy(update={"stale": base.settings.stale or stale}),
        }

    def there(self) -> Iterator[tuple[int, DocumentRecord, Array]]:
        """Yields the number, the record and the tokens of each document that is not removed."""
        table, removed = self.store.documents, set(self.store.manifest.removed)
        for number in range(len(table)):
            if number not in removed:
                row = table[number]
                yield number, row, self.store.tokens[row.first : row.first + row.length]

    def added(
        self, document: Document, ids: Sequence[int], fields: Mapping[str, Any]
    ) -> Document | None:
        """The document to add for one that was given, if there is one."""
        raise NotImplementedError

    def settle(self) -> None:
        """Decides what is to be done, once all documents were read."""
        raise NotImplementedError


class Additions(Changes):
    """Selects the documents that a datastore does not have yet, and gives each a free id."""

    def __init__(self, store: Datastore) -> None:
        super().__init__(store)
        self._contents: dict[bytes, str] = {}
        self._ids: dict[str, int] = {}
        for _, row, tokens in self.there():
            self._contents.setdefault(_digest(tokens, row.source), row.id)
            self._ids[row.id] = 1
        # The new id of each of these documents whose id is taken. The parts of one large file share
        # an id, and keep sharing it.
        self._before, self._renamed = frozenset(self._ids), dict[str, str]()
        self._existing: list[str] = []  # the documents that are there already

    def added(
        self, document: Document, ids: Sequence[int], fields: Mapping[str, Any]
    ) -> Document | None:
        id, there = document.id, self._contents.get(_digest(ids, fields["source"]))
        if there is not None:
            self._existing.append(id if id == there else f"{id} (as {there})")
            return None
        if id not in self._before:
            return document
        if id not in self._renamed:
            self._renamed[id] = unique_id(id, self._ids)
        return replace(document, id=self._renamed[id])

    def settle(self) -> None:
        folder = self.store.folder
        if not self.tokens and not self._existing:
            raise CorpusError("the documents to add contain no tokens; add more text")
        if self._existing:
            logger.warning(
                "%d documents are already in %s and were not added again, such as %s",
                len(self._existing),
                folder,
                self._existing[0],
            )
        if self._renamed:
            logger.warning(
                "%d new documents share their id with a document in %s and were added under new "
                "ids, such as %s for %s; to replace changed documents, use `knn-logits sync`",
                len(self._renamed),
                folder,
                *next((new, id) for id, new in self._renamed.items()),
            )


class Differences(Changes):
    """The differences between a datastore and the documents that it is to hold."""

    done: Sync  # once `settle` was called

    def __init__(self, store: Datastore, keep: Callable[[str], bool] | None, force: bool) -> None:
        super().__init__(store)
        self._keep, self._force = keep or (lambda _: False), force
        # Documents of the datastore that no given document has matched yet. The parts of one large
        # file share an id, and are matched one after another.
        self._waiting: dict[tuple[str, bytes], deque[int]] = {}
        for number, row, tokens in self.there():
            digest = _digest(tokens, row.source, row.title, row.uri, row.metadata)
            self._waiting.setdefault((row.id, digest), deque()).append(number)
        self._before = dict.fromkeys(id for id, _ in self._waiting)
        self._met: dict[str, None] = {}
        self._differing: set[str] = set()

    def added(
        self, document: Document, ids: Sequence[int], fields: Mapping[str, Any]
    ) -> Document | None:
        self._met[document.id] = None
        names = ("source", "title", "uri", "metadata")
        digest = _digest(ids, *(fields[name] for name in names))
        same = self._waiting.get((document.id, digest))
        if same:
            same.popleft()
            return None
        self._differing.add(document.id)
        return document

    def settle(self) -> None:
        before, met = self._before, self._met
        if before and not before.keys() & met.keys() and not self._force:
            example = next(iter(before))
            raise CorpusError(
                f"none of the {len(before):,} documents of {self.store.folder}, such as "
                f"{example!r}, is among the {len(met):,} documents given: pass the folder it was "
                "built from, or --force (force=True) to replace them all"
            )
        missing = [id for id in before if id not in met]
        kept = {id: None for id in missing if self._keep(id)}
        left = [(id, number) for (id, _), numbers in self._waiting.items() for number in numbers]
        self.gone = tuple(number for id, number in left if id not in kept)
        differing = self._differing | {id for id, _ in left}
        self.done = Sync(
            datastore=self.store,
            added=tuple(id for id in met if id not in before),
            changed=tuple(id for id in met if id in before and id in differing),
            removed=tuple(id for id in missing if id not in kept),
            unchanged=sum(id in before and id not in differing for id in met),
            kept=tuple(kept),
            tokens=self.tokens,
        )
        if self.gone and self.store.manifest.windows.concatenate:
            logger.warning(
                "the documents of %s are one stream, so the remaining keys may still depend on "
                "removed text before them; rebuild the datastore if that matters",
                self.store.folder,
            )


def _digest(tokens: Sequence[int] | Array, *texts: str | None) -> bytes:
    """Digests a document's tokens, and what else counts."""
    digest = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=_DIGEST_BYTES)
    digest.update(repr(texts).encode())
    return digest.digest()
