"""The steps that building and adding share: writing the canary, the text and the keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.planning import KeyPlan
from knn_logits.corpus.documents import Document, as_documents
from knn_logits.engine.compatibility import (
    CANARY_KEYS,
    CANARY_TOKENS,
    SAME_KEYS,
    canary_keys,
    canary_tokens,
    relative_error,
    vocabulary_size,
)
from knn_logits.engine.keys import compute_keys
from knn_logits.engine.pairs import PairTokenizer, tokenize_pairs
from knn_logits.engine.tokens import tokenize_with_places
from knn_logits.engine.windows import windows_of
from knn_logits.errors import CorpusError, MismatchError
from knn_logits.progress import Progress, counter
from knn_logits.store.blocks import BLOCKS, blocks_value
from knn_logits.store.datastore import Datastore
from knn_logits.store.entries import Contexts
from knn_logits.store.job import Job
from knn_logits.store.reading import map_array, read_arrays
from knn_logits.store.writer import TokenWriter, write_keys, writing_text

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

    def write_text(self, documents: Iterable[Document | str]) -> TokenWriter:
        self.progress("tokens", 0, None)
        rows = as_documents(documents)
        return self.append(cut_documents(self.tokenizer, rows, self.keys.pairs))

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
                if ids:
                    writer.add(ids, **document_fields(document, places, pairs=pairs))
                self.progress("tokens", writer.tokens, None)
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
    tokenizer: Any, documents: Iterable[Document], pairs: PairTokenizer | None = None
) -> Iterator[Cut]:
    if pairs is None:
        yield from tokenize_with_places(tokenizer, documents)
    else:
        yield from ((document, ids, []) for document, ids in tokenize_pairs(pairs, documents))


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
