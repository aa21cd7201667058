"""Estimates what a build will need. Sizes are counted, and times are measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from typing_extensions import Unpack

from knn_logits.arrays import Array
from knn_logits.building import costs
from knn_logits.building.costs import Extent, Speed
from knn_logits.building.gate_fitting import gate_tokens
from knn_logits.building.indexing import check_index
from knn_logits.building.on_demand import calibrated_tokens
from knn_logits.building.planning import BuildPlan, KeyPlan, PlanSettings, check_keywords, planned
from knn_logits.building.steps import cut_documents, document_fields
from knn_logits.corpus.documents import Document, as_documents, several
from knn_logits.engine.compatibility import (
    canary_keys,
    canary_tokens,
    check_causal,
    vocabulary_size,
)
from knn_logits.engine.forward import evaluating
from knn_logits.engine.windows import TextWindow, plan, windows_of
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.index.backends import backend, usual_kinds
from knn_logits.index.choice import choose_factory
from knn_logits.metrics import DEFAULT_METRIC
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import IndexConfig, index_config, whole_number
from knn_logits.store.documents import DocumentRecord, write_documents
from knn_logits.store.entries import Contexts

# The forward pass is timed on so many tokens of a corpus, or on so many windows.
_SAMPLE_TOKENS, _SAMPLE_WINDOWS = 1 << 20, 64
# The usual number of neighbors where text is written; queries are timed alone, and so many at once.
_K, _BATCH = 64, 8


@dataclass(frozen=True)
class Need:
    """What a datastore with one kind of index needs.

    Attributes:
        index: The factory string, or "exact".
        chosen: Whether a build with the same settings makes this index.
        nprobe: The number of inverted lists that queries are timed with; None where the index has
            none.
        bytes: Size of the datastore's folder.
        memory: The most memory of a process that searches, the model and the program included.
        building_memory: The same of the process that builds.
        gpu_memory: Memory of a GPU that holds the model and the index; None where FAISS has no
            form of the index for a GPU.
        seconds: Time of the build on this machine; None where there is no model to time.
        milliseconds: Time of a search for one query.
        batch_milliseconds: Time of a search for 8 queries at once. Both are None for a kind of
            index that is not measured.
        machine: The smallest usual machine that would do.
    """

    index: str
    chosen: bool
    nprobe: int | None
    bytes: int
    memory: int
    building_memory: int
    gpu_memory: int | None
    seconds: float | None
    milliseconds: float | None
    batch_milliseconds: float | None
    machine: str


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
    needs = [replace(need, seconds=(need.seconds or 0.0) + reading) for need in estimate.needs]
    return replace(estimate, seconds=(estimate.seconds or 0.0) + reading, needs=tuple(needs))


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
    progress("measuring the speed", 0, None)
    canary, fits_gate = 0, False
    if model is not None:
        build = planned(model, tokenizer, settings)
        keys = build.keys
        dim, canary = _key_shape(model, tokenizer, keys)
        size, stride = keys.windows.window, keys.windows.stride
        sample = np.random.default_rng(0).integers(
            0, vocabulary_size(model), size * _SAMPLE_WINDOWS, dtype=np.int32
        )
        windows = list(plan([0], [len(sample)], size, stride))
        total = costs.tokens_read(tokens, size, stride)
        scale = total / sum(window.size for window in windows)
        speed = costs.measured_speed(model, keys, sample, windows, dim, scale, total)
        fits_gate = build.fits_gate
    else:
        dim = whole_number("dim", dim, 1)
        speed = costs.supposed_speed(tokens, dim, layers, settings.get("window"))
    config = index_config(settings.get("index"))
    dtype, metric = settings.get("keys_dtype", "float16"), config.metric or DEFAULT_METRIC
    extent = Extent(tokens - 1, tokens, 1, dim, dtype, metric, 0, canary)
    k, chooses = settings.get("k"), settings.get("calibrate", True)
    estimator = _Estimator(extent, speed, k, chooses, settings.get("threads"), fits_gate)
    return estimator.all(config, compare)


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
    progress("measuring the speed", 0, None)
    dim, canary = _key_shape(model, tokenizer, keys)
    tokens, metric = int(contexts.length.sum()), build.index.metric or DEFAULT_METRIC
    extent = Extent(
        contexts.entries, tokens, text.documents, dim, keys.dtype, metric, text.table_bytes, canary
    )
    check_index(build.index, dim, metric, contexts.entries)
    windows = windows_of(contexts, keys.windows)
    sample = windows if keys.pairs is None else _with_sources(windows, keys, text.sources)
    total = sum(window.size + window.source_size for window in windows)
    speed = costs.measured_speed(
        model, keys, text.tokens, sample, dim, len(windows) / len(sample), total
    )
    if build.on_demand is None:
        chosen = (build.fixed.get("k"), build.chooses, build.threads)
        estimator = _Estimator(extent, speed, *chosen, build.fits_gate)
        return estimator.all(build.index, compare)
    size = costs.text_store_bytes(extent)
    seconds = costs.suffix_seconds(text.tokens, tokens) + size / costs.WRITTEN
    if build.chooses:
        seconds += calibrated_tokens(build.on_demand, extent.entries) * speed.token * speed.slowed
    return Estimate(extent.documents, tokens, extent.entries, size, seconds, dim, speed.slowed)


@dataclass(frozen=True)
class _Estimator:
    """Estimates a datastore of an extent, whatever its index."""

    extent: Extent
    speed: Speed
    k: int | None
    chooses: bool  # whether the build chooses settings
    threads: int | None
    fits_gate: bool  # whether the build fits a gate

    def all(self, index: IndexConfig, compare: bool) -> Estimate:
        """The estimate with the index of a build first, and with other kinds on request."""
        extent, needs = self.extent, [self.need(index, chosen=True)]
        for kind in usual_kinds(extent.entries, extent.dim) if compare else []:
            other = IndexConfig(kind, index.metric, nprobe=index.nprobe, seed=index.seed)
            if kind != needs[0].index:
                with suppress(ConfigError):  # it learns from more keys than there are
                    needs.append(self.need(other, chosen=False))
        counts = (extent.documents, extent.tokens, extent.entries, needs[0].bytes, needs[0].seconds)
        return Estimate(*counts, extent.dim, self.speed.slowed, tuple(needs))

    def need(self, config: IndexConfig, *, chosen: bool) -> Need:
        """What the datastore needs with one kind of index."""
        extent, speed = self.extent, self.speed
        entries, dim, metric = extent.entries, extent.dim, extent.metric
        check_index(config, dim, metric, entries)
        factory = config.factory if config.factory != "auto" else choose_factory(entries, dim)
        kind = backend(factory, dim, metric)
        size = costs.store_bytes(extent, kind, native=config.native)
        seconds = None
        if speed.keys is not None:
            idle = kind.building_seconds(entries, config.train_size, self.threads)
            idle += costs.recall_seconds(kind, entries)
            if self.fits_gate:
                idle += gate_tokens(entries) * speed.token
            if self.chooses:
                idle += costs.calibration_seconds(entries, speed.token, speed.head, self.k)
            seconds = speed.keys + speed.slowed * idle + size / costs.WRITTEN
        nprobe = config.nprobe or kind.usual_nprobe
        queries = kind.query_seconds(entries, min(self.k or _K, entries), (1, _BATCH), nprobe)
        single, batch = [1e3 * spent for spent in queries] if queries else (None, None)
        memory = speed.program + 2 * kind.array_bytes(entries) + 4 * entries
        making = kind.making_bytes(entries, config.train_size)
        building = speed.program + speed.batch + making
        on_gpu = kind.gpu_bytes(entries)
        return Need(
            index=factory,
            chosen=chosen,
            nprobe=nprobe,
            bytes=size,
            memory=memory,
            building_memory=building,
            gpu_memory=None if on_gpu is None else on_gpu + speed.weights,
            seconds=seconds,
            milliseconds=single,
            batch_milliseconds=batch,
            machine=costs.machine_for(max(memory, building), size),
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
        raise CorpusError("the documents contain no tokens; add more text")
    first = np.array([record.first for record in records], dtype=np.int64)
    contexts = Contexts(first, total, keys.windows.concatenate)
    if contexts.entries == 0:
        raise CorpusError("no document in the corpus has at least two tokens; add more text")
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
