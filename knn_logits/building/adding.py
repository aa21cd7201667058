"""`add_documents`: more text for a datastore that exists, without computing the old keys again."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.encoding import vectors_of_growth
from knn_logits.building.indexing import automatic_factory, same_kind, write_index, write_suffixes
from knn_logits.building.planning import KeyPlan
from knn_logits.building.recall import ENOUGH_RECALL, measured
from knn_logits.building.steps import Cut, Steps, cut_documents
from knn_logits.corpus.documents import Document, as_documents, several, unique_id
from knn_logits.engine.compatibility import check_model, check_tokenizer, locate_key, pair_tokenizer
from knn_logits.engine.forward import evaluating
from knn_logits.engine.keys import tokens_of_pass
from knn_logits.engine.location import is_encoder_decoder
from knn_logits.errors import CorpusError, DatastoreError
from knn_logits.index.base import Index
from knn_logits.index.opening import backend_of, whole_index
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import check_threads
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import Job, begin
from knn_logits.store.records import IndexRecord
from knn_logits.store.writer import SHARD_BYTES, TokenWriter

logger = logging.getLogger(__name__)

_KEYS_AT_ONCE = 65_536
# Among four billion documents, two have the same digest by chance with probability 2^-64.
_DIGEST_BYTES = 16


def add_documents(
    model: nn.Module,
    tokenizer: Any,
    datastore: Datastore | str | os.PathLike[str],
    documents: Iterable[Document | str],
    *,
    batch_tokens: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    threads: int | None = None,
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
        shard_bytes: Size of one file of keys.
        threads: OpenMP threads of the index; None leaves the choice to FAISS.
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
    check_threads(threads)
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    folder = store.folder.resolve()
    keys = key_plan(model, tokenizer, store, batch_tokens)
    with begin(folder, "add", keys.as_text(model, tokenizer)) as job, evaluating(model):
        store = Datastore(folder)
        check_has_keys(store)
        keep_checks(job, store)
        steps = Steps(job, model, tokenizer, keys, progress, shard_bytes)
        additions = Additions(store)
        rows = as_documents(documents, store.documents.ids)
        progress("tokens", 0, None)
        new = additions.select(cut_documents(tokenizer, rows, keys.pairs))
        first = next(new, None)
        if first is not None:
            text = steps.append(chain([first], new), store)
        _report(folder, additions)
        if first is None and not additions.existing:
            raise CorpusError("the documents to add contain no tokens; add more text")
        if first is None or job.repeated:
            job.give_up()
        else:
            finish_growth(steps, store, text, threads)
    return Datastore(folder)


def digest_of(tokens: Sequence[int] | Array, source: str | None) -> bytes:
    """Digests what a document's keys depend on: its tokens and, of a pair, its source."""
    digest = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=_DIGEST_BYTES)
    if source is not None:
        digest.update(b"source" + source.encode())
    return digest.digest()


def contents_of(store: Datastore) -> Iterator[tuple[int, str, bytes]]:
    """Yields the number, the id and the digest of each document that is not removed."""
    table, removed = store.documents, set(store.manifest.removed)
    ids, pairs = table.ids, store.manifest.pairs is not None
    spans = zip(table.first.tolist(), table.length.tolist(), strict=True)
    for number, (first, length) in enumerate(spans):
        if number not in removed:
            source = table.sources([number])[0] if pairs else None
            yield number, ids[number], digest_of(store.tokens[first : first + length], source)


class Additions:
    """Selects the documents that a datastore does not have yet, and gives each a free id."""

    def __init__(self, store: Datastore) -> None:
        self._pairs = store.manifest.pairs is not None
        self._contents: dict[bytes, str] = {}
        self._ids: dict[str, int] = {}
        for _, id, digest in contents_of(store):
            self._contents.setdefault(digest, id)
            self._ids[id] = 1
        self._before = frozenset(self._ids)
        # Of each document that is there already its id, and its id there; of others the new id.
        self.existing: list[tuple[str, str]] = []
        self.renamed: dict[str, str] = {}

    def select(self, cut: Iterator[Cut]) -> Iterator[Cut]:
        """Yields the documents to add. A document without a token is left out."""
        for document, ids, places in cut:
            if not ids:
                continue
            digest = digest_of(ids, document.source if self._pairs else None)
            if digest in self._contents:
                self.existing.append((document.id, self._contents[digest]))
                continue
            if document.id in self._before:
                # The parts of one large file share an id, and keep sharing it.
                if document.id not in self.renamed:
                    self.renamed[document.id] = unique_id(document.id, self._ids)
                document = replace(document, id=self.renamed[document.id])
            yield document, ids, places


def _report(folder: Path, additions: Additions) -> None:
    """Warns of documents that were not added, and of documents that got another id."""
    if additions.existing:
        given, present = additions.existing[0]
        logger.warning(
            "%d documents are already in %s and were not added again, such as %s%s",
            len(additions.existing),
            folder,
            given,
            "" if given == present else f" (as {present})",
        )
    if additions.renamed:
        id, new = next(iter(additions.renamed.items()))
        logger.warning(
            "%d new documents share their id with a document in %s and were added under new ids, "
            "such as %s for %s; to replace changed documents, use `knn-logits sync`",
            len(additions.renamed),
            folder,
            new,
            id,
        )


def check_has_keys(store: Datastore) -> None:
    if not store.has_keys and store.manifest.on_demand is None:
        raise DatastoreError(
            f"{store.folder} was published without keys, so documents cannot be added; rebuild "
            "the datastore"
        )


def keep_checks(job: Job, store: Datastore) -> None:
    """Writes the canary into a job's folder, before the text."""
    if job.file("checks") is None:
        job.write("checks", store.checks)


def key_plan(
    model: nn.Module, tokenizer: Any, store: Datastore, batch_tokens: int | None
) -> KeyPlan:
    """Plans how the keys of more text are computed, and checks model and tokenizer first."""
    location = locate_key(model, store)
    batch = tokens_of_pass(model, batch_tokens)
    check_tokenizer(tokenizer, store)
    check_model(model, store, location, adds=True)
    if is_encoder_decoder(model) and store.manifest.pairs is None:
        raise DatastoreError(
            f"{store.folder} was imported without its sources, so documents cannot be added; "
            "rebuild it"
        )
    return KeyPlan(
        key=store.manifest.key.name,
        location=location,
        windows=store.manifest.windows,
        dtype=store.manifest.dtype,
        batch_tokens=batch,
        pairs=pair_tokenizer(model, tokenizer, store),
    )


def finish_growth(
    steps: Steps, store: Datastore, text: TokenWriter, threads: int | None, **changed: Any
) -> None:
    """Computes the keys of text that was appended, extends the index, and ends the job."""
    job, base = steps.job, store.manifest
    if store.clusters is not None:
        logger.warning(
            "the clusters of %s did not cover the new entries and were removed: recompute "
            "them with `knn-logits index --clusters`",
            store.folder,
        )
    contexts = text.contexts()
    if base.on_demand is None:
        steps.write_keys(text, contexts, first_entry=base.entries)
    manifest = job.manifest(
        base,
        # Clusters are of the old entries only.
        without=("index", "clusters", "suffixes", "vectors"),
        entries=contexts.entries,
        documents=text.documents,
        tokens=text.tokens,
        settings=base.settings.model_copy(update={"stale": True}),
        **changed,
    )
    grown = Datastore.unfinished(store.folder, manifest)
    if store.suffixes is not None:
        write_suffixes(job, grown, steps.progress)
    encoder = vectors_of_growth(job, store, grown, steps.tokenizer, steps.progress)
    if base.on_demand is not None:
        job.commit(manifest, encoder=encoder)
        return
    index, record = extended_index(store, grown, threads, steps.progress)
    write_index(job, grown, index, record, store.checks)
    job.commit(manifest, index=record, encoder=encoder)


def extended_index(
    store: Datastore, grown: Datastore, threads: int | None, progress: Progress
) -> tuple[Index, IndexRecord]:
    record = store.manifest.index
    kind = backend_of(store)
    if not kind.extends:
        factory = record.factory
        if not kind.approximate and record.requested == "auto":
            factory = automatic_factory(grown)
        return same_kind(grown, record, factory, threads, progress)
    # A format that cannot be checked is not read here: only a user who asks for it trusts it.
    index: Any = whole_index(store, threads=threads)
    progress(f"index {record.factory}", 0, None)
    for batch in grown.key_batches(_KEYS_AT_ONCE, len(store)):
        index.add(batch)
    new = measured(grown, index, record, progress)
    if new.recall is not None and new.recall.value < ENOUGH_RECALL:
        before = f", {record.recall.value:.3f} before" if record.recall else ""
        logger.warning(
            "recall@%d of the index fell to %.3f%s: rebuild it with `knn-logits index %s`",
            new.recall.at,
            new.recall.value,
            before,
            store.folder,
        )
    return index, new
