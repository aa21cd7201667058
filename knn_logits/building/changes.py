"""The changes that given documents make to a datastore: new ones, different ones, and lost ones."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
_DESCRIBING = ("title", "uri", "metadata")


@dataclass(frozen=True)
class Sync:
    """The result of `sync_documents`, or its plan.

    Attributes:
        datastore: The datastore, opened again.
        added: Ids of the documents that are new.
        changed: Ids of the documents whose text, title, uri or metadata changed.
        removed: Ids of the documents that are gone.
        unchanged: Number of documents that did not change.
        kept: Ids of the documents that are gone, but that `keep` wanted to stay.
        tokens: Number of tokens whose keys are computed.
    """

    datastore: Datastore
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int
    kept: tuple[str, ...]
    tokens: int

    def to_dict(self) -> dict[str, int]:
        """Returns the numbers of documents, for JSON."""
        return {
            name: len(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if name != "datastore"
        }


class Changes:
    """The changes that given documents make to a datastore."""

    def __init__(self, store: Datastore) -> None:
        self.store = store
        self.pairs = store.manifest.pairs is not None
        # Numbers of the documents that do not stay, and new descriptions of those that do.
        self.gone: tuple[int, ...] = ()
        self.described: dict[int, dict[str, str | None]] = {}
        self.tokens = 0  # of the documents to add

    def new(self, cut: Iterator[Cut], progress: Progress) -> Iterator[Cut]:
        """Yields the documents to add. A document without a token is left out."""
        read = 0
        for document, ids, places in cut:
            if ids:
                read += len(ids)
                progress("tokens", read, None)
                digest = _digest_of(ids, document.source if self.pairs else None)
                added = self.added((document, ids, places), digest)
                if added is not None:
                    self.tokens += len(ids)
                    yield added, ids, places

    def described_in(self, records: list[DocumentRecord]) -> list[DocumentRecord]:
        """The table of documents with the new descriptions."""
        for number, fields in self.described.items():
            records[number] = replace(records[number], **fields)  # type: ignore[arg-type]
        return records

    def fields(self) -> dict[str, Any]:
        """The fields of the manifest that change."""
        base, stale = self.store.manifest, bool(self.tokens or self.gone)
        return {
            "removed": tuple(sorted({*base.removed, *self.gone})),
            "settings": base.settings.model_copy(update={"stale": base.settings.stale or stale}),
        }

    def added(self, given: Cut, digest: bytes) -> Document | None:
        """The document to add for one that was given, if there is one."""
        raise NotImplementedError

    def settle(self) -> None:
        """Decides what is to be done, once all documents were read."""
        raise NotImplementedError


class Additions(Changes):
    """Selects the documents that a datastore does not have yet, and gives each a free id."""

    def __init__(self, store: Datastore) -> None:
        super().__init__(store)
        contents = [(id, digest) for _, id, digest in contents_of(store)]
        self._contents = {digest: id for id, digest in reversed(contents)}
        self._ids = {id: 1 for id, _ in contents}
        # The new id of each of these documents whose id is taken. The parts of one large file share
        # an id, and keep sharing it.
        self._before, self._renamed = frozenset(self._ids), dict[str, str]()
        self._existing: list[str] = []  # the documents that are there already

    def added(self, given: Cut, digest: bytes) -> Document | None:
        document, id = given[0], given[0].id
        if digest in self._contents:
            there = self._contents[digest]
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

    plan: Sync  # once `settle` was called

    def __init__(
        self,
        store: Datastore,
        keep: Callable[[str], bool] | None,
        force: bool,
        on_plan: Callable[[Sync], None] | None,
    ) -> None:
        super().__init__(store)
        self._keep, self._force, self._on_plan = keep, force, on_plan
        # Documents of the datastore that no given document has matched yet. The parts of one large
        # file share an id, and are matched one after another.
        self._waiting: dict[tuple[str, bytes], deque[int]] = {}
        self._before: dict[str, None] = {}
        for number, id, digest in contents_of(store):
            self._before[id] = None
            self._waiting.setdefault((id, digest), deque()).append(number)
        self._met: dict[str, None] = {}
        self._differing: set[str] = set()

    def added(self, given: Cut, digest: bytes) -> Document | None:
        document, _, places = given
        self._met[document.id] = None
        same = self._waiting.get((document.id, digest))
        if not same:
            self._differing.add(document.id)
            return document
        number = same.popleft()
        fields = document_fields(document, places, pairs=self.pairs)
        record = self.store.documents[number]
        if any(fields[name] != getattr(record, name) for name in _DESCRIBING):
            self._differing.add(document.id)
            self.described[number] = {name: fields[name] for name in _DESCRIBING}
        return None

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
        kept = [id for id in missing if self._keep is not None and self._keep(id)]
        left = [(id, number) for (id, _), numbers in self._waiting.items() for number in numbers]
        self.gone = tuple(number for id, number in left if id not in set(kept))
        differing = self._differing | {id for id, _ in left}
        self.plan = Sync(
            datastore=self.store,
            added=tuple(id for id in met if id not in before),
            changed=tuple(id for id in met if id in before and id in differing),
            removed=tuple(id for id in missing if id not in set(kept)),
            unchanged=sum(id in before and id not in differing for id in met),
            kept=tuple(kept),
            tokens=self.tokens,
        )
        if self._on_plan is not None:
            self._on_plan(self.plan)
        if self.gone and self.store.manifest.windows.concatenate:
            logger.warning(
                "the documents of %s are one stream, so the remaining keys may still depend on "
                "removed text before them; rebuild the datastore if that matters",
                self.store.folder,
            )


def contents_of(store: Datastore) -> Iterator[tuple[int, str, bytes]]:
    """Yields the number, the id and the digest of each document that is not removed."""
    table, removed = store.documents, set(store.manifest.removed)
    ids, pairs = table.ids, store.manifest.pairs is not None
    spans = zip(table.first.tolist(), table.length.tolist(), strict=True)
    for number, (first, length) in enumerate(spans):
        if number not in removed:
            source = table[number].source if pairs else None
            yield number, ids[number], _digest_of(store.tokens[first : first + length], source)


def _digest_of(tokens: Sequence[int] | Array, source: str | None) -> bytes:
    """Digests what a document's keys depend on: its tokens and, of a pair, its source."""
    digest = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=_DIGEST_BYTES)
    if source is not None:
        digest.update(b"source" + source.encode())
    return digest.digest()
