"""`build_datastore` makes a datastore from a corpus; `build_needs` says what that takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from typing_extensions import Unpack

from knn_logits.arrays import Array
from knn_logits.building.distributed import Ranks, on_cluster
from knn_logits.building.gate_fitting import write_gate
from knn_logits.building.indexing import (
    check_index,
    like_temperature,
    make_index,
    write_index,
    write_suffixes,
)
from knn_logits.building.planning import BuildPlan, BuildSettings, PlanSettings, planned
from knn_logits.building.settings_choice import choose_settings, unrepeated_ngram
from knn_logits.building.steps import Steps, cut_documents, encoder_named, write_vectors
from knn_logits.corpus.documents import Document, as_documents
from knn_logits.engine.compatibility import canary_keys, canary_tokens, vocabulary_size
from knn_logits.engine.forward import evaluating
from knn_logits.engine.windows import compute_keys, windows_of
from knn_logits.errors import CorpusError
from knn_logits.index.kinds import Kind, choose_factory
from knn_logits.metrics import DEFAULT_METRIC
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.ray.connection import connect
from knn_logits.settings.config import check_names
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import Contexts
from knn_logits.store.job import begin
from knn_logits.store.layout import CANARY_KEYS
from knn_logits.store.manifest import Manifest
from knn_logits.store.records import IndexRecord, SettingsRecord

# The name in a manifest in place of an index, where keys are computed on demand.
_ON_DEMAND = "on-demand"


def build_datastore(
    model: nn.Module,
    tokenizer: Any,
    documents: Iterable[Document | str],
    folder: str | os.PathLike[str],
    *,
    progress: Progress = no_progress,
    **settings: Unpack[BuildSettings],
) -> Datastore:
    """Builds a datastore from a corpus: one entry for each token that another token precedes.

    The key of an entry is the model's hidden state before the token, and the value is the token.
    Khandelwal et al. (2020), "Generalization through Memorization", section 2. With an
    encoder-decoder model the entries are the tokens of the targets, and the model also reads their
    sources. Khandelwal et al. (2021), "Nearest Neighbor Machine Translation", section 2.

    An interrupted build continues when it is called again with the same arguments. It then ends
    with the same bytes as a build without an interruption.

    Args:
        model: The model that will use the datastore.
        tokenizer: Its tokenizer.
        documents: Texts or `Document`s, in order. They are read once. For an encoder-decoder model
            they have a `source`, and their text is the target.
        folder: The folder to write. It must be new or empty.
        progress: A callback that is told how far the work is.
        key: Where the key is in the model: "ffn_input" (the default), "layer_output",
            "head_input", or a module's path with ":input" or ":output".
        window: The number of tokens that the model sees at once, and the stride between windows.
        concatenate: Join the documents into one stream, so that contexts cross their edges.
        source_prefix: A text that stands before every source, for an encoder-decoder model.
        source_lang: The language of the sources, for a tokenizer that knows languages.
        target_lang: The language of the targets.
        index: What kind of index to build.
        k: Neighbors for each query. This value and the others of `settings_for("build")` are kept
            as the datastore's settings, which hold where a user gives none. `KNNConfig` explains
            them.
        lmbda: Weight of the neighbors, in [0, 1].
        temperature: Temperature of the softmax over the neighbors, above 0. Where None is not
            calibrated, it takes 10 for the metric "l2" and what corresponds to it for another.
        calibrate: Choose those of the settings that are not given (True) by the likelihood of a
            sample of the corpus, and fit an `AdaptiveGate` where `lmbda` is not given.
        store_keys: Compute the keys now and store them (True). Otherwise the datastore holds the
            text and its suffix index, eight bytes a token, and the model computes the keys of the
            passages that matter where it is used. This needs a causal model, and `tune` calibrates
            the settings.
        keys_dtype: "float16" (the default), or "float32" for numbers that float16 cannot hold.
        batch_tokens: Tokens of one forward pass; None chooses by the device.
        overwrite: Replace an existing datastore once the new one is complete. It also starts an
            unfinished build again that had other arguments.
        encoder: Hub id or folder of the sentence encoder, with whose vectors questions are
            answered; "" for none. None takes the encoder of the environment variable
            KNN_LOGITS_ENCODER or all-MiniLM-L6-v2, if it can be opened.
        license: Licence of the text, kept in the manifest.
        source: Where the text comes from, kept in the manifest.
        skipped: A list that the reader of the corpus fills while it reads. The manifest keeps its
            length.
        ray: Address of a Ray cluster whose machines compute the keys: "auto", host:port, or
            "local". The files are the same as without it.
        torchrun: Whether torchrun has started this process, and all of its processes call this
            function with the same arguments. All of them compute keys. The first one reads the
            documents and writes the folder, which all of them see at the end. The files are the
            same as those of one process.

    Returns:
        The finished datastore.

    Raises:
        ConfigError: when a setting is out of its range.
        CorpusError: when no document holds two tokens.
        ModelError: when the model has no place for the key, or its keys are not finite.
        DatastoreError: when the folder cannot be used.
        MismatchError: when the folder holds an unfinished build of another model, text or plan.
        BusyError: when another process is writing the folder.
        StorageError: when the disk is full.
        UnreachableError: when there is no cluster at the address, or no machine of it is left.
    """
    check_names("argument of build_datastore", settings, BuildSettings.__annotations__)
    rows = as_documents(documents)
    ray, torchrun = settings.get("ray"), settings.get("torchrun", False)
    plan = planned(model, tokenizer, settings)
    if ray is not None:
        connect(ray)  # a missing cluster is an error before any work is done
    # The path is made absolute, since the current folder may change while the job runs.
    target = Path(folder).resolve()
    ranks = Ranks.joined() if torchrun else None
    if ranks is not None and ranks.rank:
        ranks.follow(model, plan.keys.location)
        return Datastore(folder)
    identity, overwrite = plan.as_text(model, tokenizer), settings.get("overwrite", False)
    with begin(target, "build", identity, overwrite=overwrite) as job, evaluating(model):
        steps = Steps(job, model, tokenizer, plan.keys, progress)
        canary = steps.write_canary()
        compute = None if ray is None else on_cluster(ray, canary)
        compute = compute if ranks is None else ranks.lead(canary)
        manifest = _write_entries(steps, plan, rows, canary, compute, settings)
        _finish(steps, plan, manifest, settings.get("encoder"))
    if ranks is not None:
        ranks.end()
    return Datastore(folder)


def _write_entries(
    steps: Steps,
    plan: BuildPlan,
    documents: Iterable[Document],
    canary: dict[str, Array],
    compute: Callable[..., Iterator[Array]] | None,
    settings: BuildSettings,
) -> Manifest:
    dim, metric = canary[CANARY_KEYS].shape[1], plan.index.metric or DEFAULT_METRIC
    check_index(plan.index, dim, metric)
    text = steps.append(steps.cut(documents))
    contexts = text.contexts()
    check_index(plan.index, dim, metric, contexts.entries)
    if plan.on_demand is None:
        steps.write_keys(text, contexts, dim, compute=compute)
    factory = "exact" if plan.on_demand is None else _ON_DEMAND
    return plan.keys.manifest(
        steps.model,
        steps.tokenizer,
        entries=contexts.entries,
        documents=len(text.records),
        tokens=text.tokens,
        dim=dim,
        dtype=plan.keys.dtype,
        metric=metric,
        skipped=len(settings.get("skipped", ())),
        index=IndexRecord(factory=factory, requested=plan.index.factory),
        settings=SettingsRecord(**plan.settings.stored_values()),
        license=settings.get("license"),
        source=settings.get("source"),
        on_demand=plan.on_demand,
        files=steps.job.files,
    )


def _finish(steps: Steps, plan: BuildPlan, manifest: Manifest, name: str | None) -> None:
    """Makes the index, encodes sentences, chooses settings, and writes the manifest."""
    job, progress = steps.job, steps.progress
    store = Datastore.unfinished(job.folder, manifest)
    if plan.fixed.get("temperature") is None:
        temperature = like_temperature(store, plan.settings.temperature, DEFAULT_METRIC)
        settings = manifest.settings.model_copy(update={"temperature": temperature})
        store.manifest = manifest = manifest.model_copy(update={"settings": settings})
    index, record = None, manifest.index
    if plan.on_demand is None:
        index, record = make_index(store, plan.index, progress=progress)
    else:
        write_suffixes(job, store, progress)
    encoder, encoded = encoder_named(name), None
    if encoder is not None and plan.keys.pairs is None:
        encoded = write_vectors(job, store, steps.tokenizer, encoder, progress)
    chosen, gate = manifest.settings, None
    if plan.calibrate and plan.keys.pairs is None:
        ngram = unrepeated_ngram(store, plan.index.seed)
        chosen = chosen.model_copy(update={"no_repeat_ngram_size": ngram})
    if index is not None:
        if plan.calibrate:
            chosen = choose_settings(steps, plan, store, index, chosen)
        if plan.fits_gate:
            gate = write_gate(steps, plan, store, chosen, index)
        write_index(job, index, record)
    job.commit(manifest, index=record, encoder=encoded, settings=chosen, gate=gate)


@dataclass(frozen=True)
class Needs:
    """The documents, tokens and entries of a build, which are counted, and what they take."""

    documents: int
    tokens: int
    entries: int
    bytes: int  # of its tokens, its keys and its index, or its suffix index
    seconds: float  # to compute all keys; 0 if none are stored


def build_needs(
    model: nn.Module,
    tokenizer: Any,
    documents: Iterable[Document | str],
    *,
    progress: Progress = no_progress,
    **settings: Unpack[PlanSettings],
) -> Needs:
    """Reads and cuts all documents, and computes the keys of the first of them."""
    plan = planned(model, tokenizer, settings)
    keys, metric = plan.keys, plan.index.metric or DEFAULT_METRIC
    most = keys.batch_tokens + keys.windows.window
    first: list[int] = []
    texts: list[str] = []
    sample: list[int] = []
    total = 0
    for document, ids, _ in cut_documents(tokenizer, as_documents(documents), keys.pairs, progress):
        first.append(total)
        total += len(ids)
        if len(sample) < most:
            sample += ids[: most - len(sample)]
            texts.append(document.source or "")
    contexts = Contexts(np.array(first, np.int64), total, keys.windows.concatenate)
    entries = contexts.entries
    if entries == 0:
        raise CorpusError("no document in the corpus has at least two tokens; add more text")
    with evaluating(model):
        canary = canary_tokens(tokenizer, vocabulary_size(model))[: keys.windows.window]
        dim = canary_keys(model, keys.location, canary).shape[1]
        check_index(plan.index, dim, metric, entries)
        if plan.on_demand is not None:
            return Needs(len(first), total, entries, 4 * (total + entries), 0.0)
        windows = windows_of(contexts, keys.windows)
        inside = [window for window in windows if window.start + window.size < len(sample)]
        timed = sum(window.entries for window in inside)
        pairs, began = keys.pairs, time.perf_counter()
        for _ in compute_keys(
            model,
            keys.location,
            np.array(sample, np.int32),
            inside,
            dim=dim,
            dtype=keys.dtype,
            batch_tokens=keys.batch_tokens,
            sources=None if pairs is None else lambda one: pairs.sources([texts[n] for n in one]),
            advance=counter(progress, "timing the first keys", timed),
        ):
            pass
        seconds = (time.perf_counter() - began) * entries / timed
    factory = plan.index.factory
    factory = choose_factory(entries, dim) if factory == "auto" else factory
    size = 4 * total + entries * dim * np.dtype(keys.dtype).itemsize
    size += Kind(factory, dim, metric).file_bytes(entries)
    return Needs(len(first), total, entries, size, seconds)
