"""`build_datastore`: corpus to tokens, to keys, to an index, to a finished folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from knn_logits._version import __version__
from knn_logits.build.calibration import calibrate as calibrated_settings
from knn_logits.build.corpus import Document
from knn_logits.build.indexing import index_arrays, like_temperature, make_index, probe_arrays
from knn_logits.build.keys import compute_keys, default_batch_tokens
from knn_logits.build.progress import Progress, no_progress
from knn_logits.build.tokens import tokenize
from knn_logits.capture.forward import evaluating, input_device
from knn_logits.capture.location import DEFAULT_KEY, find_key, is_encoder_decoder
from knn_logits.compatibility import (
    CANARY_KEYS,
    CANARY_LENGTH,
    CANARY_TOKENS,
    canary_keys,
    check_causal,
    model_record,
    tokenizer_record,
    vocabulary_size,
)
from knn_logits.config import IndexConfig, KNNConfig, WindowConfig
from knn_logits.datastore import layout
from knn_logits.datastore.files import map_array, write_arrays
from knn_logits.datastore.manifest import (
    IndexRecord,
    KeyRecord,
    Manifest,
    SettingsRecord,
    WindowRecord,
)
from knn_logits.datastore.store import Datastore
from knn_logits.datastore.writer import (
    KeyWriter,
    TokenWriter,
    building,
    mark_finished,
    record_files,
)
from knn_logits.errors import ConfigError, ModelError
from knn_logits.neighbors import Array
from knn_logits.windows import plan, resolve


def build_datastore(
    model: nn.Module,
    tokenizer: Any,
    documents: Iterable[Document | str],
    folder: str | os.PathLike[str],
    *,
    key: str = DEFAULT_KEY,
    window: WindowConfig | None = None,
    concatenate: bool = False,
    index: IndexConfig | None = None,
    k: int | None = None,
    lmbda: float | None = None,
    temperature: float | None = None,
    calibrate: bool = True,
    keys_dtype: str = "float16",
    batch_tokens: int | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    license: str | None = None,
    source: str | None = None,
    skipped: Sequence[tuple[str, str]] = (),
    progress: Progress = no_progress,
) -> Datastore:
    """Makes a datastore of a corpus: one entry for each token that has something before it.

    The key is the model's state before the token, the value the token. Khandelwal et al. (2020),
    "Generalization through Memorization", section 2.

    Args:
        model: The model that will use the datastore.
        tokenizer: Its tokenizer.
        documents: Texts or `Document`s, in order; read once.
        folder: Where the datastore is written: a new or an empty folder.
        key: "ffn_input", "layer_output", or a module's path with ":input" or ":output".
        window: Tokens seen at once, and the stride between windows.
        concatenate: Join the documents into one stream, so that contexts cross their edges.
        index: What kind of index.
        k: Neighbors a query, for users who give none; so the next two.
        lmbda: Weight of the neighbors, in [0, 1].
        temperature: Of the softmax over the neighbors, above 0; None takes 10 for the metric
            "l2" and what corresponds to it for another, where it is not calibrated.
        calibrate: Choose those of the three that are not given by the likelihood of a sample of
            the corpus.
        keys_dtype: "float16", or "float32" for keys that do not fit it.
        batch_tokens: Tokens a forward pass; None chooses by the device.
        threads: OpenMP threads of the index; None leaves FAISS's own choice.
        overwrite: Replace a datastore that is there.
        license: Licence of the text, kept in the manifest.
        source: Where the text comes from, kept in the manifest.
        skipped: Filled by the reader of the corpus while it is read; its length is kept.
        progress: Told how far the work is.

    Returns:
        The finished datastore.

    Raises:
        ConfigError: when a setting is out of its range.
        CorpusError: when no document holds two tokens.
        ModelError: when the model has no place for the key, or its keys are not finite.
        DatastoreError: when the folder cannot be used.
    """
    if keys_dtype not in ("float16", "float32"):
        raise ConfigError(f"keys are kept in float16 or float32, not in {keys_dtype!r}")
    if batch_tokens is not None and batch_tokens < 1:
        raise ConfigError(f"batch_tokens must be at least 1, not {batch_tokens}")
    if is_encoder_decoder(model):
        raise ModelError(
            "a datastore of an encoder-decoder model is made of sources and targets, which this "
            "release does not build; give a causal model"
        )
    settings = KNNConfig().with_given(k=k, lmbda=lmbda, temperature=temperature)
    index = index or IndexConfig()
    location = find_key(model, key)
    window_size, stride = resolve(window or WindowConfig(), context_length(model))
    device = input_device(model)
    target = Path(folder)
    with building(target, overwrite=overwrite) as folder, evaluating(model):
        writer = _write_tokens(
            folder, tokenizer, documents, vocabulary_size(model), concatenate, progress
        )
        contexts = writer.contexts()
        tokens = map_array(folder / layout.TOKENS, "int32", (writer.tokens,))
        canary = np.asarray(tokens[: min(CANARY_LENGTH, window_size)])
        check_causal(model, location, canary)
        parts = compute_keys(
            model,
            location,
            tokens,
            list(plan(contexts.first, contexts.length, window_size, stride)),
            dtype=keys_dtype,
            batch_tokens=batch_tokens or default_batch_tokens(device),
        )
        dim = _write_keys(folder, parts, contexts.entries, progress)
        canary_arrays = {
            CANARY_TOKENS: canary,
            CANARY_KEYS: canary_keys(model, location, canary),
        }
        manifest = Manifest(
            created_with=__version__,
            model=model_record(model),
            tokenizer=tokenizer_record(tokenizer),
            key=KeyRecord(name=key, module=location.module, side=location.side),
            entries=contexts.entries,
            documents=writer.documents,
            tokens=writer.tokens,
            dim=dim,
            dtype="float16" if keys_dtype == "float16" else "float32",
            metric=index.metric or "l2",
            windows=WindowRecord(window=window_size, stride=stride, concatenate=concatenate),
            index=IndexRecord(factory="exact", requested=index.factory),
            settings=SettingsRecord(
                k=settings.k, lmbda=settings.lmbda, temperature=settings.temperature
            ),
            license=license,
            source=source,
            files=record_files(folder),
        )
        # The index is built over a datastore that is whole but for it, and marked unfinished.
        store = Datastore.unfinished(folder, manifest)
        if temperature is None:
            fitting = like_temperature(store, settings.temperature, "l2")
            manifest = manifest.model_copy(
                update={"settings": manifest.settings.model_copy(update={"temperature": fitting})}
            )
        built, record = make_index(store, index, threads=threads, progress=progress)
        settings_record = manifest.settings
        if calibrate:
            store.manifest = manifest
            settings_record = calibrated_settings(
                model,
                location,
                store,
                built,
                k=k,
                lmbda=lmbda,
                temperature=temperature,
                seed=index.seed,
                progress=progress,
            )
        arrays = index_arrays(built, record)
        if arrays is not None:
            write_arrays(folder / layout.INDEX, arrays, {"factory": record.factory})
        write_arrays(folder / layout.CHECKS, canary_arrays | probe_arrays(store, built), {})
        progress("checksums", 0, None)
        manifest.model_copy(
            update={
                "index": record,
                "settings": settings_record,
                "skipped": len(skipped),
                "files": record_files(folder, manifest.files),
            }
        ).write(folder)
        mark_finished(folder)
    return Datastore(target)


def _write_keys(folder: Path, parts: Iterator[Array], entries: int, progress: Progress) -> int:
    """Writes the keys in shards, and returns their length."""
    progress("keys", 0, entries)
    keys: KeyWriter | None = None
    done = 0
    for part in parts:
        if keys is None:
            keys = KeyWriter(folder, part.shape[1], str(part.dtype), entries)
        keys.append(part)
        done += len(part)
        progress("keys", done, entries)
    assert keys is not None
    keys.flush()
    return keys.dim


def context_length(model: nn.Module) -> int | None:
    """Tokens a model can read at once, None when its configuration sets no limit."""
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _write_tokens(
    folder: Path,
    tokenizer: Any,
    documents: Iterable[Document | str],
    vocabulary: int,
    concatenate: bool,
    progress: Progress,
) -> TokenWriter:
    progress("tokens", 0, None)
    with TokenWriter(folder, concatenate=concatenate, vocabulary=vocabulary) as writer:
        for document, ids in tokenize(tokenizer, _as_documents(documents)):
            if ids:
                writer.add(
                    ids,
                    id=document.id,
                    title=document.title,
                    uri=document.uri,
                    metadata=json.dumps(document.metadata, default=str)
                    if document.metadata
                    else None,
                )
            progress("tokens", writer.tokens, None)
    return writer


def _as_documents(documents: Iterable[Document | str]) -> Iterator[Document]:
    for number, document in enumerate(documents):
        yield Document(document, str(number)) if isinstance(document, str) else document
