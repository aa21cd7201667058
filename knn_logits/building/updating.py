"""`add_documents` and `sync_documents`: other text for a datastore, at the cost of what is new."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from torch import nn

from knn_logits.building.changes import Additions, Changes, Differences, Sync
from knn_logits.building.encoding import vectors_of_growth
from knn_logits.building.indexing import index_anew, write_index, write_suffixes
from knn_logits.building.planning import KeyPlan
from knn_logits.building.recall import measured
from knn_logits.building.steps import Steps, cut_documents
from knn_logits.corpus.documents import Document, as_documents, several
from knn_logits.engine.compatibility import check_model, check_tokenizer, locate_key, pair_tokenizer
from knn_logits.engine.forward import evaluating
from knn_logits.engine.keys import tokens_of_pass
from knn_logits.engine.location import is_encoder_decoder
from knn_logits.errors import DatastoreError
from knn_logits.index.base import Index
from knn_logits.index.opening import kind_of, whole_index
from knn_logits.progress import Progress, no_progress
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import begin
from knn_logits.store.records import IndexRecord

logger = logging.getLogger(__name__)

_KEYS_AT_ONCE = 65_536


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
        steps = Steps(job, model, tokenizer, keys, progress)
        additions = Additions(Datastore(job.folder))
        _update(steps, additions, as_documents(documents, additions.store.documents.ids))
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
        steps = Steps(job, model, tokenizer, keys, progress)
        differences = Differences(Datastore(job.folder), keep, force)
        _update(steps, differences, as_documents(documents))
    return replace(differences.done, datastore=Datastore(job.folder))


def _opened(
    model: nn.Module,
    tokenizer: Any,
    datastore: Datastore | str | os.PathLike[str],
    batch_tokens: int | None,
) -> tuple[Datastore, KeyPlan]:
    """Opens a datastore for more text, and checks model and tokenizer before it plans the keys."""
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    location = locate_key(model, store)
    batch = tokens_of_pass(model, batch_tokens)
    check_tokenizer(tokenizer, store)
    check_model(model, store, location, adds=True)
    if is_encoder_decoder(model) and store.manifest.pairs is None:
        raise DatastoreError(
            f"{store.folder} was imported without its sources, so documents cannot be added; "
            "rebuild it"
        )
    keys = KeyPlan(
        key=store.manifest.key.name,
        location=location,
        windows=store.manifest.windows,
        dtype=store.manifest.dtype,
        batch_tokens=batch,
        pairs=pair_tokenizer(model, tokenizer, store),
    )
    return store, keys


def _update(steps: Steps, changes: Changes, documents: Iterable[Document]) -> None:
    """Writes the changes of a datastore, and ends the job."""
    job, store, base = steps.job, changes.store, changes.store.manifest
    steps.progress("tokens", 0, None)
    cut = cut_documents(steps.tokenizer, documents, steps.keys.pairs)
    new = changes.new(cut, steps.progress)
    first = next(new, None)
    if first is None:
        if changes.gone:
            job.commit(base, **changes.fields())
        else:
            job.give_up()
        return
    if not store.has_keys and base.on_demand is None:
        raise DatastoreError(
            f"{store.folder} was published without keys, so documents cannot be added; rebuild "
            "the datastore"
        )
    text = steps.append(chain([first], new), store)
    contexts = text.contexts()
    if base.on_demand is None:
        with evaluating(steps.model):
            steps.write_keys(text, contexts, base.dim, first_entry=base.entries)
    if store.clusters is not None:
        logger.warning(
            "the clusters of %s did not cover the new entries and were removed: recompute "
            "them with `knn-logits index --clusters`",
            store.folder,
        )
    manifest = job.manifest(
        base,
        # Clusters are of the old entries only.
        without=("index", "clusters", "suffixes", "vectors"),
        entries=contexts.entries,
        documents=len(text.records),
        tokens=text.tokens,
        **changes.fields(),
    )
    grown = Datastore.unfinished(store.folder, manifest)
    if store.suffixes is not None:
        write_suffixes(job, grown, steps.progress)
    encoder = vectors_of_growth(job, store, grown, steps.tokenizer, steps.progress)
    record = base.index
    if base.on_demand is None:
        index, record = _extended_index(store, grown, steps.progress)
        write_index(job, grown, index, record, store.checks)
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
    for batch in grown.key_batches(_KEYS_AT_ONCE, len(store)):
        index.add(batch)
    return index, measured(grown, index, record, progress)
