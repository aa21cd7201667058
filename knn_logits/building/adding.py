"""`add_documents`: more text for a datastore that exists, without computing the old keys again."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from torch import nn

from knn_logits.building.indexing import make_index, write_index
from knn_logits.building.keys import default_batch_tokens
from knn_logits.building.nearness import near_record, nearness_of
from knn_logits.building.recall import RECALL_WANTED, measured
from knn_logits.building.steps import KeyPlan, write_keys, write_text
from knn_logits.capture.forward import evaluating, input_device
from knn_logits.capture.location import is_encoder_decoder
from knn_logits.compatibility import check_model, check_tokenizer, locate_key, pair_tokenizer
from knn_logits.config import IndexConfig, check_threads, whole_number
from knn_logits.corpus.documents import Document, several
from knn_logits.datastore.files import write_arrays
from knn_logits.datastore.job import begin
from knn_logits.datastore.manifest import IndexRecord
from knn_logits.datastore.store import Datastore
from knn_logits.datastore.writer import SHARD_BYTES
from knn_logits.errors import CorpusError, DatastoreError
from knn_logits.index.base import Index
from knn_logits.index.choice import choose_factory
from knn_logits.opening import whole_index
from knn_logits.progress import Progress, no_progress

logger = logging.getLogger(__name__)

_KEYS_AT_ONCE = 65_536


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
    """Adds documents to a datastore, behind those it has.

    The index is extended, not trained anew, and its recall measured again. Calibrated settings are
    marked as stale. An addition that was interrupted goes on when it is called again with the same
    documents; until it is done, readers see the datastore as it was.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A datastore with its keys, or its folder.
        documents: Texts or `Document`s, in order; read once. Pairs for an encoder-decoder model.
        batch_tokens: Tokens a forward pass; None chooses by the device.
        shard_bytes: Size of a file of keys.
        threads: OpenMP threads of the index; None leaves FAISS's own choice.
        progress: Told how far the work is.

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
    if batch_tokens is not None:
        batch_tokens = whole_number("batch_tokens", batch_tokens, 1)
    check_threads(threads)
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    folder = store.folder.resolve()
    location = locate_key(model, store)
    check_tokenizer(tokenizer, store)
    check_model(model, store, location)
    windows = store.manifest.windows
    if is_encoder_decoder(model) and store.manifest.pairs is None:
        raise DatastoreError(
            f"{folder} was imported without its sources, so nothing can be added; build it again"
        )
    pairs = pair_tokenizer(model, tokenizer, store)
    keys = KeyPlan(
        location=location,
        windows=windows,
        dtype=store.manifest.dtype,
        batch_tokens=batch_tokens or default_batch_tokens(input_device(model)),
        pairs=pairs,
    )
    with begin(folder, "add", keys.as_text(model, tokenizer)) as job, evaluating(model):
        store = Datastore(folder)
        base = store.manifest
        if not store.has_keys:
            raise DatastoreError(f"{folder} has no keys, so nothing can be added; build it again")
        if job.file("checks") is None:
            write_arrays(job.path("checks"), store.checks, {})
            job.note(job.path("checks"))
        before = (store.tokens, store.documents)
        text = write_text(
            job, tokenizer, documents, model, windows.concatenate, progress, before, pairs
        )
        if job.repeated:
            job.give_up()
            return Datastore(folder)
        if store.clusters is not None:
            logger.warning("the clusters of %s are gone: make them again", folder)
        if text.documents == base.documents:
            raise CorpusError("the documents to add hold no token; give more text")
        contexts = text.contexts()
        write_keys(
            job,
            model,
            keys,
            text,
            contexts,
            first_entry=base.entries,
            shard_bytes=shard_bytes,
            progress=progress,
        )
        manifest = job.manifest(
            base,
            # Clusters are of the old entries only.
            without=("index", "native", "clusters"),
            entries=contexts.entries,
            documents=text.documents,
            tokens=text.tokens,
            settings=base.settings.model_copy(update={"stale": True}),
        )
        grown = Datastore.unfinished(folder, manifest)
        index, record = _extended(store, grown, threads, progress)
        write_index(job, grown, index, record, store.checks)
        near = near_record(grown, nearness_of(grown, index, record.seed))
        job.commit(manifest, index=record, near=near)
    return Datastore(folder)


def _extended(
    store: Datastore, grown: Datastore, threads: int | None, progress: Progress
) -> tuple[Index, IndexRecord]:
    """The index of a datastore over the keys that were added to it as well."""
    record = store.manifest.index
    chosen = choose_factory(len(grown), grown.manifest.dim)
    if record.factory == "exact":
        factory = chosen if record.requested == "auto" else "exact"
        config = IndexConfig(factory, seed=record.seed)
        index, made = make_index(grown, config, threads=threads, progress=progress)
        return index, made.model_copy(update={"requested": record.requested})
    from knn_logits.index.faiss_backend import FaissIndex

    # Without reading FAISS's own format, which only a user who asks for it trusts.
    opened = whole_index(store, threads=threads)
    assert isinstance(opened, FaissIndex)
    progress(f"index {record.factory}", 0, None)
    for batch in grown.key_batches(_KEYS_AT_ONCE, first_entry=len(store)):
        opened.add(batch)
    nprobes = (record.nprobe,) if record.nprobe else (1,)
    new = measured(grown, opened, record, nprobes, progress)
    if new.recall is not None and new.recall.value < RECALL_WANTED:
        was = f", {record.recall.value:.3f} before" if record.recall else ""
        logger.warning(
            "recall@%d of the index has sunk to %.3f%s: build it anew with `knn-logits index %s`",
            new.recall.at,
            new.recall.value,
            was,
            store.folder,
        )
    return opened, new
