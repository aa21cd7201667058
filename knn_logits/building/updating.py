"""`add_documents` and `sync_documents`: other text for a datastore, at the cost of what is new."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.indexing import index_anew, write_index, write_suffixes
from knn_logits.building.planning import KeyPlan
from knn_logits.building.recall import measured
from knn_logits.building.steps import Cut, Steps, document_fields, vectors_of_growth
from knn_logits.corpus.documents import Document, as_documents, several, unique_id
from knn_logits.engine.compatibility import check_model, check_tokenizer, pair_tokenizer
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import find_key, is_encoder_decoder
from knn_logits.engine.windows import tokens_of_pass
from knn_logits.errors import CorpusError, DatastoreError
from knn_logits.index.base import Index
from knn_logits.index.opening import kind_of, whole_index
from knn_logits.progress import Progress, no_progress
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import DocumentRecord
from knn_logits.store.job import begin
from knn_logits.store.records import IndexRecord
from knn_logits.store.writer import TokenWriter

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


def add_documents(
    model: nn.Module,
    tokenizer: Any,
    datastore: Datastore | str | os.PathLike[str],
    documents: Iterable[Document | str],
    *,
    batch_tokens: int | None = None,
    progress: Progress = no_progress,
) -> Datastore:
    """Adds documents to a datastore, after the documents that it has.

    The index is extended and not trained anew, and its recall is measured again. Calibrated
    settings are marked as stale. An interrupted call continues when it is made again with the same
    documents. Until it has finished, readers see the datastore as it was.

    A document is not added if the datastore has one with the same content, whatever its id. A new
    document may have the id of an earlier document; `#2` is then appended to its id. To replace
    documents that have changed, use `sync_documents`.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A datastore with its keys, or its folder.
        documents: Texts or `Document`s, in order. They are read once. For an encoder-decoder model
            they are pairs.
        batch_tokens: Tokens of one forward pass; None chooses by the device.
        progress: A callback that is told how far the work is.

    Returns:
        The datastore, opened again.

    Raises:
        MismatchError: when model or tokenizer are not the datastore's.
        CorpusError: when the documents hold no token.
        DatastoreError: when the datastore has no keys.
        BusyError: when another process is writing the datastore.
        StorageError: when the disk is full.
    """
    documents = several(documents, "documents")
    store, keys = _opened(model, tokenizer, datastore, batch_tokens)
    with begin(store.folder.resolve(), "add", keys.as_text(model, tokenizer)) as job:
        steps, store = Steps(job, model, tokenizer, keys, progress), Datastore(job.folder)
        cut = steps.cut(as_documents(documents, store.documents.ids))
        _finish(steps, store, _appended(steps, store, _additions(store, cut)), [])
    return Datastore(job.folder)


def sync_documents(
    model: nn.Module,
    tokenizer: Any,
    datastore: Datastore | str | os.PathLike[str],
    documents: Iterable[Document | str],
    *,
    force: bool = False,
    keep: Callable[[str], bool] | None = None,
    batch_tokens: int | None = None,
    progress: Progress = no_progress,
) -> Sync:
    """Updates a datastore to given documents: adds new, replaces changed and removes old ones.

    Documents are matched by their ids and compared by their tokens, titles, uris and metadata, so
    that keys are computed for what is new. Until the call has finished, readers see the datastore
    as it was. An interrupted call continues when it is made again with the same documents, and with
    others it starts again. No search finds text that was removed or replaced; `compact` deletes it
    from the disk.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A datastore, or its folder.
        documents: All documents that the datastore is to hold, in any order. They are read once.
            Texts without an id are numbered from 0, as in a build.
        force: Continue even if none of the datastore's documents is among those given.
        keep: Decides whether the documents of an id that is gone stay. It is called when all
            documents are read.
        batch_tokens: Tokens of one forward pass; None chooses by the device.
        progress: A callback that is told how far the work is.

    Returns:
        What was done.

    Raises:
        MismatchError: when model or tokenizer are not the datastore's.
        CorpusError: when none of the datastore's documents is among those given.
        DatastoreError: when there is something to add, and the datastore has no keys.
        BusyError: when another process is writing the datastore.
        StorageError: when the disk is full.
    """
    documents = several(documents, "documents")
    store, keys = _opened(model, tokenizer, datastore, batch_tokens)
    plan = keys.as_text(model, tokenizer)
    # Files may change between an unfinished call and this one, so another text is not an error.
    with begin(store.folder.resolve(), "sync", plan, overwrite=True) as job:
        steps, store = Steps(job, model, tokenizer, keys, progress), Datastore(job.folder)
        compared = _Comparison(store)
        new = compared.differing(steps.cut(as_documents(documents)), force)
        text = _appended(steps, store, new)
        kept = {id for id in compared.missing if keep is not None and keep(id)}
        _finish(steps, store, text, compared.gone(kept))
    tokens = 0 if text is None else text.tokens - store.manifest.tokens
    return compared.result(Datastore(job.folder), kept, tokens)


def _opened(
    model: nn.Module,
    tokenizer: Any,
    datastore: Datastore | str | os.PathLike[str],
    batch_tokens: int | None,
) -> tuple[Datastore, KeyPlan]:
    """Opens a datastore for more text, and checks model and tokenizer before it plans the keys."""
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    location = find_key(model, store.manifest.key.name)
    batch = tokens_of_pass(model, batch_tokens)
    check_tokenizer(tokenizer, store)
    check_model(model, store, location, adds=True)
    if is_encoder_decoder(model) and store.manifest.pairs is None:
        raise DatastoreError(
            f"{store.folder} was imported without its sources, so documents cannot be added; "
            "rebuild it"
        )
    manifest, pairs = store.manifest, pair_tokenizer(model, tokenizer, store)
    return store, KeyPlan(location, manifest.windows, manifest.dtype, batch, pairs)


def _additions(store: Datastore, cut: Iterator[Cut]) -> Iterator[Cut]:
    """Yields the documents that a datastore does not have yet, each under a free id."""
    contents: dict[bytes, str] = {}
    ids: dict[str, int] = {}
    for _, row, stored in _documents_of(store):
        contents.setdefault(_digest(stored, row.source), row.id)
        ids[row.id] = 1
    # The new id of each document whose id is taken. The parts of one large file share an id, and
    # keep sharing it.
    taken, renamed = frozenset(ids), dict[str, str]()
    existing: list[str] = []
    added = False
    for document, tokens, places in cut:
        id, source = document.id, document.source if store.manifest.pairs else None
        there = contents.get(_digest(tokens, source))
        if there is not None:
            existing.append(id if id == there else f"{id} (as {there})")
            continue
        if id in taken:
            renamed[id] = renamed.get(id) or unique_id(id, ids)
        added = True
        yield replace(document, id=renamed.get(id, id)), tokens, places
    if not added and not existing:
        raise CorpusError("the documents to add contain no tokens; add more text")
    if existing:
        logger.warning(
            f"{store.folder} already has {len(existing)} of the documents, which were not added "
            f"again, such as {existing[0]}"
        )
    if renamed:
        id, new = next(iter(renamed.items()))
        logger.warning(
            f"{len(renamed)} new documents share their id with a document in {store.folder} and "
            f"were added under new ids, such as {new} for {id}; to replace changed documents, use "
            "`knn-logits sync`"
        )


class _Comparison:
    """Compares the documents of a datastore with given ones, which are read once."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        # Documents of the datastore that no given document has matched yet. The parts of one large
        # file share an id, and are matched one after another.
        self._waiting: dict[tuple[str, bytes], deque[int]] = {}
        for number, row, stored in _documents_of(store):
            digest = _digest(stored, row.source, row.title, row.uri, row.metadata)
            self._waiting.setdefault((row.id, digest), deque()).append(number)
        self._before = dict.fromkeys(id for id, _ in self._waiting)
        self._met: dict[str, None] = {}
        self._differing: set[str] = set()

    def differing(self, cut: Iterator[Cut], force: bool) -> Iterator[Cut]:
        """Yields the documents that are new or changed."""
        store, before, met = self._store, self._before, self._met
        for document, tokens, places in cut:
            met[document.id] = None
            fields = document_fields(document, places, pairs=store.manifest.pairs is not None)
            texts = (fields[name] for name in ("source", "title", "uri", "metadata"))
            same = self._waiting.get((document.id, _digest(tokens, *texts)))
            if same:
                same.popleft()
                continue
            self._differing.add(document.id)
            yield document, tokens, places
        if before and not before.keys() & met.keys() and not force:
            raise CorpusError(
                f"none of the {len(before):,} documents of {store.folder}, such as "
                f"{next(iter(before))!r}, is among the {len(met):,} documents given: pass the "
                "folder it was built from, or --force (force=True) to replace them all"
            )
        self._differing |= {id for (id, _), numbers in self._waiting.items() if numbers}

    @property
    def missing(self) -> list[str]:
        """The ids that no given document has."""
        return [id for id in self._before if id not in self._met]

    def gone(self, kept: Collection[str]) -> list[int]:
        """The numbers of the documents that go, but those of some ids."""
        left = ((id, numbers) for (id, _), numbers in self._waiting.items() if id not in kept)
        return [number for _, numbers in left for number in numbers]

    def result(self, store: Datastore, kept: Collection[str], tokens: int) -> Sync:
        before, differing = self._before, self._differing
        return Sync(
            datastore=store,
            added=tuple(id for id in self._met if id not in before),
            changed=tuple(id for id in self._met if id in before and id in differing),
            removed=tuple(id for id in self.missing if id not in kept),
            unchanged=sum(id in before and id not in differing for id in self._met),
            kept=tuple(id for id in self.missing if id in kept),
            tokens=tokens,
        )


def _documents_of(store: Datastore) -> Iterator[tuple[int, DocumentRecord, Array]]:
    """Yields the number, the record and the tokens of each document that is not removed."""
    removed = set(store.manifest.removed)
    for number in range(len(store.documents)):
        if number not in removed:
            row = store.documents[number]
            yield number, row, store.tokens[row.first : row.first + row.length]


def _digest(tokens: Sequence[int] | Array, *texts: str | None) -> bytes:
    digest = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=_DIGEST_BYTES)
    digest.update(repr(texts).encode())
    return digest.digest()


def _appended(steps: Steps, store: Datastore, new: Iterator[Cut]) -> TokenWriter | None:
    """Writes new documents after the text of a datastore; None if there are none."""
    first = next(new, None)
    if first is None:
        return None
    if not store.has_keys and store.manifest.on_demand is None:
        raise DatastoreError(
            f"{store.folder} was published without keys, so documents cannot be added; rebuild "
            "the datastore"
        )
    return steps.append(chain([first], new), store)


def _finish(
    steps: Steps, store: Datastore, text: TokenWriter | None, gone: Collection[int]
) -> None:
    """Writes the keys and all that depends on the changes of a datastore, and ends the job."""
    job, base = steps.job, store.manifest
    if gone and base.windows.concatenate:
        logger.warning(
            f"the documents of {store.folder} are one stream, so the remaining keys may still "
            "depend on removed text before them; rebuild the datastore if that matters"
        )
    changed: dict[str, Any] = {
        "removed": tuple(sorted({*base.removed, *gone})),
        "settings": base.settings.model_copy(update={"stale": True}),
    }
    if text is None:
        if gone:
            job.commit(base, **changed)
        else:
            job.give_up()
        return
    contexts = text.contexts()
    if base.on_demand is None:
        with evaluating(steps.model):
            steps.write_keys(text, contexts, base.dim, first_entry=base.entries)
    if store.clusters is not None:
        logger.warning(
            f"the clusters of {store.folder} did not cover the new entries and were removed: "
            "recompute them with `knn-logits index --clusters`"
        )
    manifest = job.manifest(
        base,
        # Clusters are of the old entries only.
        without=("index", "clusters", "suffixes", "vectors"),
        entries=contexts.entries,
        documents=len(text.records),
        tokens=text.tokens,
        **changed,
    )
    grown = Datastore.unfinished(store.folder, manifest)
    if store.suffixes is not None:
        write_suffixes(job, grown, steps.progress)
    encoder = vectors_of_growth(job, store, grown, steps.tokenizer, steps.progress)
    record = base.index
    if base.on_demand is None:
        index, record = _extended_index(store, grown, steps.progress)
        write_index(job, index, record)
    job.commit(manifest, index=record, encoder=encoder)


def _extended_index(
    store: Datastore, grown: Datastore, progress: Progress
) -> tuple[Index, IndexRecord]:
    record = store.manifest.index
    if not kind_of(store).approximate:
        return index_anew(grown, progress)
    # A format that cannot be checked is not read here: only a user who asks for it trusts it.
    index: Any = whole_index(store)
    progress(f"index {record.factory}", 0, None)
    for batch in grown.key_batches(len(store)):
        index.add(batch)
    return index, measured(grown, index, record, progress)
