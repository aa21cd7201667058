"""Says what a build needs, and builds nothing: bytes by a formula, seconds from one batch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn
from typing_extensions import Unpack

from knn_logits.building.indexing import check_index
from knn_logits.building.planning import BuildPlan, PlanSettings, planned
from knn_logits.building.steps import cut_documents
from knn_logits.corpus.documents import Document, as_documents, several
from knn_logits.engine.compatibility import canary_keys, canary_tokens, vocabulary_size
from knn_logits.engine.forward import evaluating, input_device, key_states, windows_batch
from knn_logits.engine.windows import batches, windows_of
from knn_logits.errors import CorpusError
from knn_logits.index.kinds import Kind, choose_factory
from knn_logits.metrics import DEFAULT_METRIC
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import check_names
from knn_logits.store.entries import Contexts


@dataclass(frozen=True)
class Needs:
    """The documents, tokens and entries of a build, which are counted, and what they take."""

    documents: int
    tokens: int
    entries: int
    bytes: int  # see `store_bytes`
    seconds: float  # to compute all keys; 0 if none are stored


def store_bytes(plan: BuildPlan, tokens: int, entries: int, dim: int) -> int:
    """The size of a datastore: its tokens, its keys and its index, or its suffix index."""
    if plan.on_demand is not None:
        return 4 * (tokens + entries)
    factory, metric = plan.index.factory, plan.index.metric or DEFAULT_METRIC
    factory = choose_factory(entries, dim) if factory == "auto" else factory
    keys = entries * dim * np.dtype(plan.keys.dtype).itemsize
    return 4 * tokens + keys + Kind(factory, dim, metric).file_bytes(entries)


def build_needs(
    model: nn.Module,
    tokenizer: Any,
    documents: Iterable[Document | str],
    *,
    progress: Progress = no_progress,
    **settings: Unpack[PlanSettings],
) -> Needs:
    """Reads and cuts all documents, and computes the keys of the first batch."""
    check_names("argument of build_needs", settings, PlanSettings.__annotations__)
    plan = planned(model, tokenizer, settings)
    keys = plan.keys
    first: list[int] = []
    sources: list[str] = []
    sample: list[int] = []
    total = 0
    rows = as_documents(several(documents, "documents"))
    for document, ids, _ in cut_documents(tokenizer, rows, keys.pairs):
        if not ids:
            continue
        first.append(total)
        total += len(ids)
        if len(sample) < keys.batch_tokens + keys.windows.window:
            sample += ids
            sources.append(document.source or "")
        progress("tokens", total, None)
    contexts = Contexts(np.array(first, np.int64), total, keys.windows.concatenate)
    if contexts.entries == 0:
        raise CorpusError("no document in the corpus has at least two tokens; add more text")
    with evaluating(model):
        canary = canary_tokens(tokenizer, vocabulary_size(model))[: keys.windows.window]
        dim = canary_keys(model, keys.location, canary).shape[1]
        check_index(plan.index, dim, plan.index.metric or DEFAULT_METRIC, contexts.entries)
        seconds = 0.0
        if plan.on_demand is None:
            windows = windows_of(contexts, keys.windows)
            inside = [window for window in windows if window.start + window.size <= len(sample)]
            batch = next(batches(inside, keys.batch_tokens))
            if keys.pairs is not None:
                read = keys.pairs.sources([sources[window.context] for window in batch])
                batch = [replace(one, source=ids) for one, ids in zip(batch, read, strict=True)]
            progress("timing one batch", 0, None)
            inputs = windows_batch(np.array(sample, np.int32), batch, input_device(model))
            began = time.perf_counter()
            key_states(model, keys.location, inputs).cpu()
            spent = time.perf_counter() - began
            seconds = spent * sum(w.size for w in windows) / sum(w.size for w in batch)
    size = store_bytes(plan, total, contexts.entries, dim)
    return Needs(len(first), total, contexts.entries, size, seconds)
