"""The steps that building and adding share: the canary, the text, the keys, and the vectors."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.planning import KeyPlan
from knn_logits.corpus.documents import Document
from knn_logits.engine.compatibility import (
    SAME_KEYS,
    canary_keys,
    canary_tokens,
    relative_error,
    vocabulary_size,
)
from knn_logits.engine.encoder import Encoder, default_encoder, encoder_of
from knn_logits.engine.pairs import PairTokenizer, tokenize_pairs
from knn_logits.engine.passages import read_passages
from knn_logits.engine.tokens import tokenize
from knn_logits.engine.windows import compute_keys, windows_of
from knn_logits.errors import ConfigError, CorpusError, MismatchError
from knn_logits.progress import Progress, counter
from knn_logits.store import layout
from knn_logits.store.blocks import BLOCKS, blocks_value
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import Contexts
from knn_logits.store.files import map_array, read_arrays
from knn_logits.store.job import Job
from knn_logits.store.layout import CANARY_KEYS, CANARY_TOKENS
from knn_logits.store.records import EncoderRecord
from knn_logits.store.writer import TokenWriter, write_keys, writing_text

logger = logging.getLogger(__name__)

_SENTENCES_AT_ONCE = 1024
# A document, its tokens, and the number of the first token of each of its blocks.
Cut = tuple[Document, list[int], list[int]]


@dataclass(frozen=True)
class Steps:
    """The steps of a job that computes keys: the canary, the text, and the keys."""

    job: Job
    model: nn.Module
    tokenizer: Any
    keys: KeyPlan
    progress: Progress

    def write_canary(self) -> dict[str, Array]:
        """Computes the keys of a fixed text, the canary, and keeps them for a later run."""
        job, location = self.job, self.keys.location
        window = self.keys.windows.window
        tokens = canary_tokens(self.tokenizer, vocabulary_size(self.model))[:window]
        computed = canary_keys(self.model, location, tokens)
        if job.file("checks") is not None:
            saved = read_arrays(job.path("checks"))[0]
            before = saved.get(CANARY_KEYS)
            if before is not None and relative_error(computed, before) <= SAME_KEYS:
                return {CANARY_TOKENS: saved[CANARY_TOKENS], CANARY_KEYS: before}
            if not job.overwrite:
                raise MismatchError(
                    f"{job.folder} holds an unfinished build by a model with different weights; "
                    "load that model to resume, or start over with --overwrite"
                )
            job.begin_again()
        canary = {CANARY_TOKENS: tokens, CANARY_KEYS: computed}
        job.write("checks", canary)
        return canary

    def cut(self, documents: Iterable[Document]) -> Iterator[Cut]:
        return cut_documents(self.tokenizer, documents, self.keys.pairs, self.progress)

    def append(self, cut: Iterable[Cut], store: Datastore | None = None) -> TokenWriter:
        """Writes a datastore's text, and new documents after it."""
        pairs = self.keys.pairs is not None
        with writing_text(
            self.job,
            concatenate=self.keys.windows.concatenate,
            vocabulary=vocabulary_size(self.model),
            before=None if store is None else (store.tokens, store.documents),
        ) as writer:
            for document, ids, places in cut:
                writer.add(ids, **document_fields(document, places, pairs=pairs))
        return writer

    def write_keys(
        self,
        text: TokenWriter,
        contexts: Contexts,
        dim: int,
        first_entry: int = 0,
        compute: Callable[..., Iterator[Array]] | None = None,
    ) -> None:
        """Computes and writes the keys that an earlier run did not write."""
        tokens = map_array(self.job.path("tokens"), "int32", (text.tokens,))
        pairs, done = self.keys.pairs, self.job.keys
        parts = (compute or compute_keys)(
            self.model,
            self.keys.location,
            np.asarray(tokens),
            [
                window
                for window in windows_of(contexts, self.keys.windows)
                if window.first_entry + window.entries > first_entry
            ],
            dim=dim,
            dtype=self.keys.dtype,
            batch_tokens=self.keys.batch_tokens,
            first_entry=first_entry + done,
            sources=None if pairs is None else lambda one: pairs.sources(text.sources(one)),
            advance=counter(self.progress, "keys", contexts.entries - first_entry, done),
        )
        write_keys(self.job, parts)


def cut_documents(
    tokenizer: Any, documents: Iterable[Document], pairs: PairTokenizer | None, progress: Progress
) -> Iterator[Cut]:
    """Tokenizes documents, and leaves out those without a token."""
    tokens = 0
    progress("tokens", 0, None)
    cut: Iterator[Cut] = (
        tokenize(tokenizer, documents)
        if pairs is None
        else ((document, ids, []) for document, ids in tokenize_pairs(pairs, documents))
    )
    for one in cut:
        if one[1]:
            yield one
            tokens += len(one[1])
            progress("tokens", tokens, None)


def document_fields(document: Document, places: Sequence[int], *, pairs: bool) -> dict[str, Any]:
    """Returns what the table of documents keeps of a document, besides where its tokens are."""
    fields = {name: getattr(document, name) for name in ("id", "title", "uri")}
    source = document.source if pairs else None
    return {**fields, "metadata": _metadata_text(document, places), "source": source}


def _metadata_text(document: Document, places: Sequence[int]) -> str | None:
    fields = dict(document.metadata)
    fields.pop(BLOCKS, None)
    fields |= blocks_value(zip(places, document.blocks, strict=False))
    if not fields:
        return None
    try:
        return json.dumps(fields, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorpusError(
            f"the metadata of the document {document.id!r} is not JSON-serializable ({error}); "
            "use plain values"
        ) from error


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
        logger.warning(f"questions will be answered by words alone: {error}")
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
            logger.info(f"{encoder.id} does not know the language {language}")
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
        for start in range(done, len(rows), _SENTENCES_AT_ONCE):
            progress("sentences", start, len(rows))
            part = rows[start : start + _SENTENCES_AT_ONCE]
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
        logger.warning(f"the datastore loses the vectors of its sentences: {error}")
        return None
    return write_vectors(job, grown, tokenizer, encoder, progress, store)
