"""The steps that building and adding share: writing the text, the canary and the keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.corpus.documents import Document, as_documents
from knn_logits.engine.compatibility import (
    CANARY_KEYS,
    CANARY_TOKENS,
    SAME,
    canary_keys,
    canary_tokens,
    check_causal,
    model_record,
    relative_error,
    tokenizer_record,
    vocabulary_size,
)
from knn_logits.engine.keys import Sources, compute_keys
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.pairs import PairTokenizer
from knn_logits.engine.tokens import tokenize_pairs, tokenize_with_places
from knn_logits.engine.windows import plan
from knn_logits.errors import CorpusError, MismatchError
from knn_logits.progress import Progress
from knn_logits.store.documents import Contexts
from knn_logits.store.files import write_arrays
from knn_logits.store.job import Job
from knn_logits.store.places import PLACES, places_value
from knn_logits.store.reading import map_array, read_arrays
from knn_logits.store.records import WindowRecord
from knn_logits.store.writer import SHARD_BYTES, KeyWriter, TokenWriter


@dataclass(frozen=True)
class KeyPlan:
    """Everything that determines the keys of a text, down to the last bit.

    Attributes:
        location: Where the key is.
        windows: How the text is cut.
        dtype: Precision of the stored keys.
        batch_tokens: Tokens of one forward pass. The shape of a matrix product affects rounding.
        pairs: Cuts the sources and targets of an encoder-decoder model.
    """

    location: KeyLocation
    windows: WindowRecord
    dtype: str
    batch_tokens: int
    pairs: PairTokenizer | None = None

    def as_text(self, model: nn.Module, tokenizer: Any) -> dict[str, str]:
        """Returns the plan as text, to compare it with the plan of an unfinished job."""
        record = model_record(model)
        plan = {
            "model type": record.type,
            "model configuration": record.config_sha256[:12],
            "model precision": record.dtype,
            "tokenizer": tokenizer_record(tokenizer).sha256[:12],
            "key": f"{self.location.module}:{self.location.side}",
            "window": str(self.windows.window),
            "stride": str(self.windows.stride),
            "concatenate": str(self.windows.concatenate),
            "keys-dtype": self.dtype,
            "batch-tokens": str(self.batch_tokens),
        }
        if self.pairs is not None:
            plan |= {
                "source-prefix": self.pairs.source_prefix,
                "source-lang": str(self.pairs.source_lang),
                "target-lang": str(self.pairs.target_lang),
                "targets begin with": str(self.pairs.opening),
            }
        return plan


def write_canary(job: Job, model: nn.Module, tokenizer: Any, keys: KeyPlan) -> dict[str, Array]:
    """Computes the keys of a fixed text, the canary, and keeps them for a run that continues.

    Returns:
        The canary's arrays by name.

    Raises:
        MismatchError: when an earlier run of the job had another model.
        ModelError: when the model's states depend on later tokens.
    """
    tokens = canary_tokens(tokenizer, vocabulary_size(model))[: keys.windows.window]
    check_causal(model, keys.location, tokens)
    computed = canary_keys(model, keys.location, tokens)
    if job.file("checks") is not None:
        saved = read_arrays(job.path("checks"))[0]
        before = saved.get(CANARY_KEYS)
        if before is not None and relative_error(computed, before) <= SAME:
            return {CANARY_TOKENS: saved[CANARY_TOKENS], CANARY_KEYS: before}
        if not job.overwrite:
            raise MismatchError(
                f"{job.folder} holds an unfinished build by a model with other weights; load that "
                "model to continue, or start again with --overwrite"
            )
        job.begin_again()
    canary = {CANARY_TOKENS: tokens, CANARY_KEYS: computed}
    write_arrays(job.path("checks"), canary, {})
    job.note(job.path("checks"))
    return canary


Cut = tuple[Document, list[int], list[int]]


def write_text(
    job: Job,
    tokenizer: Any,
    documents: Iterable[Document | str],
    model: nn.Module,
    concatenate: bool,
    progress: Progress,
    pairs: PairTokenizer | None = None,
) -> TokenWriter:
    """Writes tokens and documents."""
    progress("tokens", 0, None)
    writer = TokenWriter(job, concatenate=concatenate, vocabulary=vocabulary_size(model))
    with writer:
        write_cut(writer, cut_documents(tokenizer, as_documents(documents), pairs), progress, pairs)
    return writer


def cut_documents(
    tokenizer: Any, documents: Iterable[Document], pairs: PairTokenizer | None = None
) -> Iterator[Cut]:
    """Cuts documents into tokens.

    Yields:
        Each document, its tokens, and the number of the first token at each of its places.
    """
    if pairs is None:
        yield from tokenize_with_places(tokenizer, documents)
    else:
        yield from ((document, ids, []) for document, ids in tokenize_pairs(pairs, documents))


def write_cut(
    writer: TokenWriter, cut: Iterable[Cut], progress: Progress, pairs: PairTokenizer | None = None
) -> None:
    """Appends documents that were cut into tokens, except those without a token."""
    for document, ids, places in cut:
        if ids:
            writer.add(ids, **document_fields(document, places, pairs=pairs is not None))
        progress("tokens", writer.tokens, None)


def document_fields(document: Document, places: Sequence[int], *, pairs: bool) -> dict[str, Any]:
    """Returns what the table of documents keeps of a document, besides where its tokens are.

    Args:
        document: The document.
        places: The number of the first token at each of its places.
        pairs: Whether the document has a source.
    """
    return {
        "id": document.id,
        "title": document.title,
        "uri": document.uri,
        "metadata": _metadata_text(document, places),
        "source": document.source if pairs else None,
    }


def _metadata_text(document: Document, places: Sequence[int]) -> str | None:
    fields = dict(document.metadata)
    if places:
        known = zip(places, document.places, strict=False)
        fields[PLACES] = places_value((start, one.name, one.fragment) for start, one in known)
    if not fields:
        return None
    try:
        return json.dumps(fields, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorpusError(
            f"the metadata of the document {document.id!r} cannot be written as JSON ({error}); "
            "give names with plain values"
        ) from error


def write_keys(
    job: Job,
    model: nn.Module,
    keys: KeyPlan,
    text: TokenWriter,
    contexts: Contexts,
    *,
    first_entry: int = 0,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress,
    compute: Callable[..., Iterator[Array]] | None = None,
) -> None:
    """Computes and writes the keys from `first_entry` on that an earlier run did not write.

    `compute` takes the place of `compute_keys`.
    """
    tokens = map_array(job.path("tokens"), "int32", (text.tokens,))
    entries = contexts.entries - first_entry
    windows = [
        window
        for window in plan(
            contexts.first, contexts.length, keys.windows.window, keys.windows.stride
        )
        if window.first_entry + window.entries > first_entry
    ]
    pairs = keys.pairs
    sources: Sources | None = None
    if pairs is not None:
        sources = lambda contexts: pairs.sources(text.sources(contexts))  # noqa: E731
    dim = read_arrays(job.path("checks"))[0][CANARY_KEYS].shape[1]
    writer = KeyWriter(job, dim, keys.dtype, entries, shard_bytes=shard_bytes)
    done = computed = writer.done
    progress("keys", done, entries)

    def advance(keys: int) -> None:
        nonlocal computed
        computed = min(entries, computed + keys)
        progress("keys", computed, entries)

    parts = (compute or compute_keys)(
        model,
        keys.location,
        np.asarray(tokens),
        windows,
        dim=dim,
        dtype=keys.dtype,
        batch_tokens=keys.batch_tokens,
        first_entry=first_entry + done,
        sources=sources,
        advance=advance,
    )
    for part in parts:
        writer.append(part)
        done += len(part)
        # If an earlier run computed part of a group, some keys were counted twice.
        computed = done
        progress("keys", done, entries)
    writer.flush()
