"""Estimates what a build will need. Sizes are counted, and times are measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from typing_extensions import Unpack

from knn_logits.arrays import Array
from knn_logits.building import sizes, timing
from knn_logits.building.indexing import check_index
from knn_logits.building.needs import Need, Request, Speed, needs_by_kind
from knn_logits.building.on_demand import calibrated_tokens
from knn_logits.building.planning import (
    BuildPlan,
    KeyPlan,
    PlanSettings,
    check_keywords,
    planned,
)
from knn_logits.building.sizes import Extent, process_bytes
from knn_logits.building.steps import cut_documents, document_fields
from knn_logits.corpus.documents import Document, as_documents, several
from knn_logits.engine.compatibility import (
    canary_keys,
    canary_tokens,
    check_causal,
    vocabulary_size,
)
from knn_logits.engine.forward import evaluating
from knn_logits.engine.windows import TextWindow, plan, resolve
from knn_logits.errors import CorpusError
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import IndexConfig, WindowConfig, whole_number
from knn_logits.store.documents import DocumentRecord, write_documents
from knn_logits.store.entries import Contexts

# The forward pass is timed on so many tokens of a corpus, or on so many windows.
_SAMPLE_TOKENS, _SAMPLE_WINDOWS = 1 << 20, 64
# A layer of a transformer has so many weights for each square of its width: four in its attention,
# and eight in a feed-forward network of four times the width. They are kept in half precision.
_WEIGHTS, _WEIGHT_BYTES = 12, 2
# The matrix product that stands for a model, and how much longer a head makes a forward pass.
_ROWS, _WIDEST, _HEAD = 1024, 4096, 2.0


@dataclass(frozen=True)
class Estimate:
    """What a build will need. Documents, tokens and entries are counted and not estimated.

    Attributes:
        documents: Number of documents with at least one token.
        tokens: Number of their tokens.
        entries: Number of entries.
        bytes: Size of the folder, without a gate or clusters, which are made later.
        seconds: Time from reading the first document to the finished folder. In the middle of a
            build, the time from now on. Loading the model is not part of it.
        dim: Length of a key.
        slowed: The factor, at least 1, by which other programs slow this machine down at present.
        needs: What the datastore needs with the index that the build makes, which comes first, and
            with other kinds of index if they were asked for.
    """

    documents: int
    tokens: int
    entries: int
    bytes: int
    seconds: float | None
    dim: int = 0
    slowed: float = 1.0
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True)
class TextSample:
    """The text of a build, as far as an estimate needs it."""

    tokens: Array  # int32, the corpus or its beginning
    contexts: Contexts  # the contexts of the whole corpus
    documents: int
    table_bytes: int  # size of the table of documents
    sources: list[str]  # the sources of the first contexts, where the documents are pairs


def estimate_build(
    model: nn.Module,
    tokenizer: Any,
    documents: Iterable[Document | str],
    *,
    compare: bool = False,
    progress: Progress = no_progress,
    **settings: Unpack[PlanSettings],
) -> Estimate:
    """Estimates what `build_datastore` needs with the same settings, and writes nothing.

    All documents are read and cut into tokens, since the number of entries is not known otherwise.
    Then each kind of work is timed for a few seconds.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        documents: Texts or `Document`s. They are read once.
        compare: Also estimate what the datastore would need with other kinds of index.
        progress: A callback that is told how far the work is.
        settings: `key`, `window`, `index` and so on, from `build_datastore`.

    Returns:
        The estimate.

    Raises:
        ConfigError: when a setting is out of its range.
        CorpusError: when no document holds two tokens.
        ModelError: when the model has no place for the key.
    """
    check_keywords("estimate_build", settings, PlanSettings)
    documents = several(documents, "documents")
    build = planned(model, tokenizer, settings)
    started = time.monotonic()
    text = _counted(tokenizer, documents, build.keys, progress)
    reading = time.monotonic() - started
    estimate = estimated(model, tokenizer, build, text, compare=compare, progress=progress)
    return replace(
        estimate,
        seconds=(estimate.seconds or 0.0) + reading,
        needs=tuple(
            replace(need, seconds=(need.seconds or 0.0) + reading) for need in estimate.needs
        ),
    )


def forecast(
    tokens: int,
    *,
    model: nn.Module | None = None,
    tokenizer: Any = None,
    dim: int | None = None,
    layers: int | None = None,
    compare: bool = True,
    progress: Progress = no_progress,
    **settings: Unpack[PlanSettings],
) -> Estimate:
    """Estimates the datastore of so many tokens, before there is any text.

    The text is taken for one long document. Without a model, the time for the keys comes from the
    number of its layers and from a matrix product.

    Args:
        tokens: Number of tokens of the text.
        model: The model whose keys it holds; None where only `dim` is known.
        tokenizer: Its tokenizer.
        dim: Length of a key, where there is no model.
        layers: Number of layers, where there is no model. Without it no time is estimated.
        compare: Whether other kinds of index are estimated as well.
        progress: A callback that is told that speed is measured.
        settings: `key`, `window`, `index`, `k` (None takes 64), `calibrate`, `keys_dtype`,
            `batch_tokens` and `threads`, from `build_datastore`.

    Returns:
        The estimate. Its `seconds` are None where nothing tells how long keys take.

    Raises:
        ConfigError: when a setting is out of its range.
        ModelError: when the model has no place for the key.
    """
    check_keywords("forecast", settings, PlanSettings)
    tokens = whole_number("tokens", tokens, 2)
    progress("measuring", 0, None)
    canary = 0
    if model is not None:
        dim, canary, speed = _measured(model, tokenizer, tokens, settings)
    else:
        dim = whole_number("dim", dim, 1)
        speed = _supposed(tokens, dim, layers, settings.get("window"))
    index = settings.get("index")
    config = index if isinstance(index, IndexConfig) else IndexConfig(index or "auto")
    extent = Extent(
        entries=tokens - 1,
        tokens=tokens,
        documents=1,
        dim=dim,
        dtype=settings.get("keys_dtype", "float16"),
        metric=config.metric or "l2",
        table_bytes=0,
        canary=canary,
    )
    request = Request(
        config,
        settings.get("k"),
        settings.get("calibrate", True),
        settings.get("threads"),
        compare,
    )
    return _estimate(extent, speed, request)


def estimated(
    model: nn.Module,
    tokenizer: Any,
    build: BuildPlan,
    text: TextSample,
    *,
    compare: bool = False,
    progress: Progress = no_progress,
) -> Estimate:
    """Estimates what a build will need once its text is known."""
    keys, contexts = build.keys, text.contexts
    progress("measuring", 0, None)
    dim, canary = _key_shape(model, tokenizer, keys)
    extent = Extent(
        entries=contexts.entries,
        tokens=int(contexts.length.sum()),
        documents=text.documents,
        dim=dim,
        dtype=keys.dtype,
        metric=build.index.metric or "l2",
        table_bytes=text.table_bytes,
        canary=canary,
    )
    check_index(build.index, dim, extent.metric, contexts.entries)
    windows = list(plan(contexts.first, contexts.length, keys.windows.window, keys.windows.stride))
    sample = windows if keys.pairs is None else _with_sources(windows, keys, text.sources)
    total = sum(window.size + window.source_size for window in windows)
    speed = _speed(model, keys, text.tokens, sample, dim, len(windows) / len(sample), total)
    if build.on_demand is None:
        request = Request(build.index, build.fixed.k, build.chooses, build.threads, compare)
        return _estimate(extent, speed, request)
    size = sizes.text_store_bytes(extent)
    seconds = timing.suffix_seconds(text.tokens, extent.tokens) + timing.writing_seconds(size)
    if build.chooses:
        seconds += calibrated_tokens(build.on_demand, extent.entries) * speed.token * speed.slowed
    return Estimate(
        extent.documents, extent.tokens, extent.entries, size, seconds, dim, speed.slowed
    )


def _estimate(extent: Extent, speed: Speed, request: Request) -> Estimate:
    needs = needs_by_kind(extent, speed, request)
    return Estimate(
        documents=extent.documents,
        tokens=extent.tokens,
        entries=extent.entries,
        bytes=needs[0].bytes,
        seconds=needs[0].seconds,
        dim=extent.dim,
        slowed=speed.slowed,
        needs=needs,
    )


def _counted(
    tokenizer: Any, documents: Iterable[Document | str], keys: KeyPlan, progress: Progress
) -> TextSample:
    """Reads all documents, and keeps the first tokens."""
    records: list[DocumentRecord] = []
    tokens: list[int] = []
    sources: list[str] = []
    total = 0
    progress("tokens", 0, None)
    for document, ids, places in cut_documents(tokenizer, as_documents(documents), keys.pairs):
        if ids:
            fields = document_fields(document, places, pairs=keys.pairs is not None)
            records.append(DocumentRecord(total, len(ids), **fields))
            if total < _SAMPLE_TOKENS:
                tokens += ids
                sources.append(document.source or "")
            total += len(ids)
        progress("tokens", total, None)
    if not records:
        raise CorpusError("the documents hold no token; give more text")
    first = np.array([record.first for record in records], dtype=np.int64)
    contexts = Contexts.of(first, total, keys.windows.concatenate)
    if contexts.entries == 0:
        raise CorpusError("no document of the corpus has two tokens or more; give more text")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "documents.parquet"
        write_documents(table, records)
        size = table.stat().st_size
    return TextSample(np.asarray(tokens, np.int32), contexts, len(records), size, sources)


def _with_sources(windows: list[TextWindow], keys: KeyPlan, sources: list[str]) -> list[TextWindow]:
    """Gives windows their sources, and leaves out windows beyond the sample of sources."""
    assert keys.pairs is not None
    sample = [window for window in windows if window.context < len(sources)]
    read = keys.pairs.sources([sources[window.context] for window in sample])
    return [replace(window, source=ids) for window, ids in zip(sample, read, strict=True)]


def _key_shape(model: nn.Module, tokenizer: Any, keys: KeyPlan) -> tuple[int, int]:
    """The length of a key, and the number of tokens of the canary's text."""
    canary = canary_tokens(tokenizer, vocabulary_size(model))[: keys.windows.window]
    with evaluating(model):
        check_causal(model, keys.location, canary)
        return canary_keys(model, keys.location, canary).shape[1], len(canary)


def _speed(
    model: nn.Module,
    keys: KeyPlan,
    tokens: Array,
    windows: list[TextWindow],
    dim: int,
    scale: float,
    total: int,
) -> Speed:
    """Times the keys of some windows, which stand for `scale` times as many, of `total` tokens."""
    program = process_bytes()
    seconds, slowed = timing.key_seconds(model, keys, tokens, windows, dim)
    return Speed(
        keys=seconds * scale,
        slowed=slowed,
        token=seconds * scale / slowed / max(1, total),
        head=timing.head_factor(model, dim),
        weights=sizes.weights_bytes(model),
        program=program,
        batch=max(0, process_bytes() - program),
    )


def _tokens_read(tokens: int, window: int, stride: int) -> int:
    """Tokens that the model reads, since each stands in more than one window."""
    return int(tokens * max(1.0, window / stride))


def _measured(
    model: nn.Module, tokenizer: Any, tokens: int, settings: PlanSettings
) -> tuple[int, int, Speed]:
    """The length of a key, the canary's tokens and the speed, from windows of random tokens."""
    keys = planned(model, tokenizer, settings).keys
    dim, canary = _key_shape(model, tokenizer, keys)
    size, stride = keys.windows.window, keys.windows.stride
    sample = np.random.default_rng(0).integers(
        0, vocabulary_size(model), size * _SAMPLE_WINDOWS, dtype=np.int32
    )
    windows = list(plan([0], [len(sample)], size, stride))
    total = _tokens_read(tokens, size, stride)
    scale = total / sum(window.size for window in windows)
    return dim, canary, _speed(model, keys, sample, windows, dim, scale, total)


def _supposed(tokens: int, dim: int, layers: int | None, window: WindowConfig | None) -> Speed:
    """The speed of a model of so many layers, from a product of matrices."""
    program = process_bytes()
    if layers is None:
        return Speed(None, 1.0, 0.0, _HEAD, 0, program)
    size, stride = resolve(window or WindowConfig(), None)
    weights = _WEIGHTS * whole_number("layers", layers, 1) * dim * dim
    width = min(dim, _WIDEST)
    states, matrix = torch.rand(_ROWS, width), torch.rand(width, width)
    # A product of matrices takes one multiplication for each weight and each token.
    token = timing.fastest(lambda: states @ matrix) / (_ROWS * width * width) * weights
    return Speed(
        keys=token * _tokens_read(tokens, size, stride),
        slowed=1.0,
        token=token,
        head=_HEAD,
        weights=weights * _WEIGHT_BYTES,
        program=program + weights * _WEIGHT_BYTES,
    )
