"""Estimates what a build will need. Sizes are counted, and times are measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.costs import head_factor, key_seconds, suffix_seconds, writing_seconds
from knn_logits.building.indexing import check_index
from knn_logits.building.needs import Need, Speed, needs, usual_kinds
from knn_logits.building.on_demand import calibrated_tokens
from knn_logits.building.planning import BuildPlan, planned
from knn_logits.building.sizes import Extent, bare_bytes, process_bytes, weights_bytes
from knn_logits.building.steps import KeyPlan, document_fields
from knn_logits.corpus.documents import Document, as_documents, several
from knn_logits.engine.compatibility import (
    canary_keys,
    canary_tokens,
    check_causal,
    vocabulary_size,
)
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import DEFAULT_KEY
from knn_logits.engine.tokens import tokenize_pairs, tokenize_with_places
from knn_logits.engine.windows import TextWindow, plan
from knn_logits.errors import CorpusError
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import IndexConfig, Metric, WindowConfig
from knn_logits.store.documents import Contexts, DocumentRecord, write_documents

# The forward pass is timed on so many tokens.
_KEPT = 1 << 20


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


def estimate_build(
    model: nn.Module,
    tokenizer: Any,
    documents: Iterable[Document | str],
    *,
    key: str = DEFAULT_KEY,
    window: WindowConfig | None = None,
    concatenate: bool = False,
    source_prefix: str = "",
    source_lang: str | None = None,
    target_lang: str | None = None,
    index: IndexConfig | str | None = None,
    k: int | None = None,
    lmbda: float | None = None,
    temperature: float | None = None,
    suffix_weight: float | None = None,
    calibrate: bool = True,
    store_keys: bool = True,
    keys_dtype: str = "float16",
    batch_tokens: int | None = None,
    threads: int | None = None,
    compare: bool = False,
    progress: Progress = no_progress,
) -> Estimate:
    """Estimates what `build_datastore` needs with the same arguments, and writes nothing.

    All documents are read and cut into tokens, since the number of entries is not known otherwise.
    Then each kind of work is timed for a few seconds. With `compare` the estimate also holds what
    the datastore would need with other kinds of index.

    Returns:
        The estimate.

    Raises:
        ConfigError: when a setting is out of its range.
        CorpusError: when no document holds two tokens.
        ModelError: when the model has no place for the key.
    """
    documents = several(documents, "documents")
    build = planned(
        model,
        tokenizer,
        key=key,
        window=window,
        concatenate=concatenate,
        source_prefix=source_prefix,
        source_lang=source_lang,
        target_lang=target_lang,
        index=index,
        k=k,
        lmbda=lmbda,
        temperature=temperature,
        suffix_weight=suffix_weight,
        keys_dtype=keys_dtype,
        batch_tokens=batch_tokens,
        threads=threads,
        store_keys=store_keys,
    )
    started = time.monotonic()
    counted = _count(tokenizer, documents, build.keys, progress)
    if not counted.records:
        raise CorpusError("the documents hold no token; give more text")
    first = np.array([one.first for one in counted.records], dtype=np.int64)
    contexts = Contexts.of(first, counted.total, concatenate)
    if contexts.entries == 0:
        raise CorpusError("no document of the corpus has two tokens or more; give more text")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "documents.parquet"
        write_documents(table, counted.records)
        size = table.stat().st_size
    reading = time.monotonic() - started
    found = estimated(
        model,
        tokenizer,
        build,
        np.asarray(counted.kept, np.int32),
        contexts,
        len(counted.records),
        size,
        sources=counted.sources,
        k=k,
        calibrate=calibrate and None in (k, lmbda, temperature),
        threads=threads,
        compare=compare,
        progress=progress,
    )
    return later(found, reading)


def later(estimate: Estimate, seconds: float) -> Estimate:
    """Adds the time of what comes before to an estimate."""

    def added(known: float | None) -> float | None:
        return None if known is None else known + seconds

    found = tuple(replace(one, seconds=added(one.seconds)) for one in estimate.needs)
    return replace(estimate, seconds=added(estimate.seconds), needs=found)


def estimated(
    model: nn.Module,
    tokenizer: Any,
    build: BuildPlan,
    tokens: Array,
    contexts: Contexts,
    documents: int,
    table_bytes: int,
    *,
    sources: list[str] | None = None,
    k: int | None = None,
    calibrate: bool = True,
    threads: int | None = None,
    compare: bool = False,
    progress: Progress = no_progress,
) -> Estimate:
    """Estimates what a build will need once its text is known.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        build: The plan.
        tokens: int32, the corpus or its beginning.
        contexts: The contexts of the whole corpus.
        documents: Number of documents.
        table_bytes: Size of the table of documents.
        sources: The sources of the first contexts, where the documents are pairs.
        k: The value that the user gave, if any.
        calibrate: Whether settings are chosen.
        threads: OpenMP threads of the index.
        compare: Whether other kinds of index are estimated as well.
        progress: A callback that is told that speed is measured.

    Raises:
        ConfigError: when the index cannot be made for so many entries.
    """
    keys, config = build.keys, build.index
    progress("measuring", 0, None)
    metric: Metric = config.metric or "l2"
    fixed = canary_tokens(tokenizer, vocabulary_size(model))[: keys.windows.window]
    with evaluating(model):
        check_causal(model, keys.location, fixed)
        dim = canary_keys(model, keys.location, fixed).shape[1]
    check_index(config, dim, metric, contexts.entries)
    windows = list(plan(contexts.first, contexts.length, keys.windows.window, keys.windows.stride))
    total = sum(window.size + window.source_size for window in windows)
    measured = windows
    if keys.pairs is not None:
        measured = _with_sources(windows, keys, sources or [])
    program = process_bytes()
    seconds, slowed = key_seconds(
        model,
        keys.location,
        tokens,
        measured,
        dim=dim,
        dtype=keys.dtype,
        batch_tokens=keys.batch_tokens,
    )
    seconds *= len(windows) / len(measured)
    extent = Extent(
        entries=contexts.entries,
        tokens=int(contexts.length.sum()),
        documents=documents,
        dim=dim,
        dtype=keys.dtype,
        metric=metric,
        table_bytes=table_bytes,
        fixed=len(fixed),
    )
    if build.on_demand is not None:
        rest = suffix_seconds(tokens, extent.tokens)
        if calibrate:
            rest += calibrated_tokens(build.on_demand, extent.entries) * seconds / max(1, total)
        size = bare_bytes(extent)
        rest += writing_seconds(size)
        return Estimate(documents, extent.tokens, extent.entries, size, rest, dim, slowed)
    speed = Speed(
        keys=seconds,
        slowed=slowed,
        token=seconds / slowed / max(1, total),
        head=head_factor(model, dim),
        weights=weights_bytes(model),
        program=program,
        batch=max(0, process_bytes() - program),
    )
    return told(extent, speed, config, k=k, calibrate=calibrate, threads=threads, compare=compare)


def told(
    extent: Extent,
    speed: Speed,
    config: IndexConfig,
    *,
    k: int | None,
    calibrate: bool,
    threads: int | None,
    compare: bool,
) -> Estimate:
    """Makes the estimate of a datastore whose extent is known.

    Raises:
        ConfigError: when the index cannot be made for so many entries.
    """
    kinds = usual_kinds(extent.entries, extent.dim) if compare else []
    found = needs(extent, speed, config, kinds, k=k, calibrate=calibrate, threads=threads)
    return Estimate(
        documents=extent.documents,
        tokens=extent.tokens,
        entries=extent.entries,
        bytes=found[0].bytes,
        seconds=found[0].seconds,
        dim=extent.dim,
        slowed=speed.slowed,
        needs=tuple(found),
    )


@dataclass
class _Counted:
    records: list[DocumentRecord]
    kept: list[int]
    sources: list[str]
    total: int = 0


def _count(
    tokenizer: Any, documents: Iterable[Document | str], keys: KeyPlan, progress: Progress
) -> _Counted:
    counted = _Counted([], [], [])
    cut: Iterator[tuple[Document, list[int], list[int]]]
    rows = as_documents(documents)
    if keys.pairs is None:
        cut = tokenize_with_places(tokenizer, rows)
    else:
        cut = ((one, ids, []) for one, ids in tokenize_pairs(keys.pairs, rows))
    progress("tokens", 0, None)
    for document, ids, places in cut:
        if ids:
            fields = document_fields(document, places, pairs=keys.pairs is not None)
            counted.records.append(DocumentRecord(counted.total, len(ids), **fields))
            if counted.total < _KEPT:
                counted.kept += ids
                counted.sources.append(document.source or "")
            counted.total += len(ids)
        progress("tokens", counted.total, None)
    return counted


def _with_sources(windows: list[TextWindow], keys: KeyPlan, sources: list[str]) -> list[TextWindow]:
    """Gives windows their sources, and leaves out windows whose source is not known."""
    assert keys.pairs is not None
    known = [window for window in windows if window.context < len(sources)]
    read = keys.pairs.sources([sources[window.context] for window in known])
    return [replace(window, source=ids) for window, ids in zip(known, read, strict=True)]
