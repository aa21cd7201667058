"""Writes the vectors of a datastore's sentences, which answer questions by their meaning."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import numpy as np

from knn_logits.engine.encoder import Encoder, default_encoder, encoder_of
from knn_logits.engine.passages import read_passages
from knn_logits.errors import ConfigError
from knn_logits.progress import Progress
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import Job
from knn_logits.store.records import EncoderRecord

logger = logging.getLogger(__name__)

_AT_ONCE = 1024


def encoder_named(name: str | None) -> Encoder | None:
    """Opens an encoder; a name of None takes the default. None for "" or a missing default.

    Raises:
        ConfigError: when the encoder was named and cannot be opened.
    """
    chosen = default_encoder() if name is None else name
    if not chosen:
        return None
    try:
        return Encoder(chosen)
    except ConfigError as error:
        if name is not None:
            raise
        logger.warning("questions will be answered by words alone: %s", error)
        return None


def write_vectors(
    job: Job,
    store: Datastore,
    tokenizer: Any,
    encoder: Encoder,
    progress: Progress,
    before: Datastore | None = None,
) -> EncoderRecord | None:
    """Encodes the sentences of a datastore; those of an earlier state are copied.

    None if most passages are in a language that the encoder does not know: words alone find more.
    """
    if job.file("vectors") is None:
        passages = read_passages(tokenizer, store)
        languages = Counter(passage.language for passage in passages)
        language = max(languages, key=lambda one: languages[one], default="en")
        if before is None and not encoder.knows(language):
            logger.info("%s does not know the language %s", encoder.id, language)
            return None
        rows = [text for passage in passages for text in passage.texts()]
        counts = np.zeros(len(store.documents), np.int32)
        for passage in passages:
            counts[passage.document] += len(passage.sentences)
        vectors = np.zeros((len(rows), encoder.dim), np.float16)
        done = 0
        # Another release may cut sentences in another way.
        if before is not None and before.vectors is not None:
            known = before.vector_counts
            if np.array_equal(counts[: len(known)], known):
                done = len(before.vectors)
                vectors[:done] = before.vectors
        for start in range(done, len(rows), _AT_ONCE):
            progress("sentences", start, len(rows))
            part = rows[start : start + _AT_ONCE]
            vectors[start : start + len(part)] = encoder.encode(part)
        job.write("vectors", {layout.VECTORS: vectors, layout.VECTOR_COUNTS: counts})
    return encoder.record


def vectors_of_growth(
    job: Job, store: Datastore, grown: Datastore, tokenizer: Any, progress: Progress
) -> EncoderRecord | None:
    """Extends the vectors of a datastore that grows; None if it has none or no encoder is here."""
    record = store.manifest.encoder
    if record is None:
        return None
    try:
        encoder = encoder_of(record)
    except ConfigError as error:
        logger.warning("the datastore loses the vectors of its sentences: %s", error)
        return None
    return write_vectors(job, grown, tokenizer, encoder, progress, store)
