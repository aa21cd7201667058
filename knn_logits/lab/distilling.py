"""`distill`: from a corpus to a folder of learned rows that take the place of a datastore."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from knn_logits.building.calibrate import unrepeated_ngram
from knn_logits.building.planning import PlanSettings, planned
from knn_logits.building.steps import Steps
from knn_logits.corpus.documents import Document, several
from knn_logits.engine.compatibility import CANARY_KEYS, check_model, check_tokenizer, locate_key
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import DEFAULT_KEY, is_encoder_decoder
from knn_logits.errors import ConfigError, ModelError
from knn_logits.lab.learning import Learnt, check_enough, learn
from knn_logits.metrics import LEARNED_METRIC
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import DEFAULT_K, MOST_SEED, whole_number
from knn_logits.settings.passes import WindowConfig
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import DocumentRecord
from knn_logits.store.job import Job, begin
from knn_logits.store.manifest import Manifest, needs_text
from knn_logits.store.records import IndexRecord, SettingsRecord

_MAX_ROWS = 1000.0
# The id of the only document.
DOCUMENT = "learned rows"


def distill(
    model: nn.Module,
    tokenizer: Any,
    corpus: Datastore | Iterable[Document | str],
    folder: str | os.PathLike[str],
    *,
    rows: float = 3.0,
    epochs: int = 6,
    key: str = DEFAULT_KEY,
    window: WindowConfig | None = None,
    batch_tokens: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    license: str | None = None,
    source: str | None = None,
    progress: Progress = no_progress,
) -> Datastore:
    """Learns an output embedding with several rows a token, which takes the place of a datastore.

    The model stays as it is. Its state before a token is multiplied with the rows, a softmax over
    all of them is summed by token, and the result is mixed with the model's distribution. Xu, Alon
    and Neubig (2023), "Why do nearest neighbor language models work?". The folder opens wherever a
    datastore does. It keeps no text, so a vote names a row and no passage.

    A tenth of the corpus at most is held out. It chooses when learning ends, and k, λ and the
    temperature. A repeated call continues an interrupted one: it takes the states from the
    folder, and learns the rows from the beginning.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        corpus: Texts or `Document`s, or a datastore with its keys, whose text is then the corpus.
        folder: The folder to write. It must be new or empty.
        rows: Average number of rows per distinct token of the corpus; frequent tokens get more.
        epochs: The maximum number of passes over the corpus.
        key: The place of the key in the model, where `corpus` is no datastore.
        window: Tokens that the model sees at once, and the stride, likewise.
        batch_tokens: Tokens of one forward pass; None chooses by the device.
        seed: Seed of every random choice.
        overwrite: Replace an existing datastore once the rows are complete.
        license: Licence of the text, for the manifest; None takes the datastore's.
        source: Where the text comes from, for the manifest; None takes the datastore's.
        progress: A callback that is told how far the work is.

    Returns:
        The finished memory, open.

    Raises:
        ConfigError: when a setting is out of its range.
        CorpusError: when the corpus is too small to hold a part of it out.
        ModelError: for an encoder-decoder model, or a model without a place for the key.
        MismatchError: when a datastore was built by another model.
        DatastoreError: when the folder cannot be used, or a datastore has no keys.
        BusyError: when another process is writing the folder.
        StorageError: when the disk is full.
    """
    epochs, seed = whole_number("epochs", epochs, 1), whole_number("seed", seed, 0, MOST_SEED)
    _check(model, tokenizer, corpus, rows)
    about = {"license": license, "source": source}
    if isinstance(corpus, Datastore):
        corpus.fetch_keys(progress)
        record = corpus.manifest
        key, window = record.key.name, WindowConfig(record.windows.window, record.windows.stride)
        about = {name: value or getattr(record, name) for name, value in about.items()}
    else:
        corpus = several(corpus, "documents")
    plan: PlanSettings = {"key": key, "window": window, "batch_tokens": batch_tokens}
    keys = planned(model, tokenizer, plan).keys
    text = keys.as_text(model, tokenizer) | {
        "rows": f"{rows:g}",
        "epochs": str(epochs),
        "seed": str(seed),
        "corpus": corpus.manifest.checksum[:12] if isinstance(corpus, Datastore) else "documents",
    }
    how: dict[str, Any] = {"rows": float(rows), "epochs": epochs, "seed": seed}
    target = Path(folder).resolve()
    with begin(target, "build", text, overwrite=overwrite) as job, evaluating(model):
        _run(Steps(job, model, tokenizer, keys, progress), corpus, about, how)
    return Datastore(target)


def _check(model: nn.Module, tokenizer: Any, corpus: object, rows: object) -> None:
    """Refuses an encoder-decoder model, a datastore of another model or without text, and rows."""
    if isinstance(rows, bool) or not isinstance(rows, (int, float)) or not 0 < rows <= _MAX_ROWS:
        raise ConfigError(f"rows must be a number above 0 and at most {_MAX_ROWS:g}, not {rows!r}")
    if is_encoder_decoder(model):
        raise ModelError(
            "a learned memory needs a causal model: use one, or build a datastore of pairs"
        )
    if isinstance(corpus, Datastore):
        needs_text(corpus.manifest, corpus.folder, "`distill`")
        check_tokenizer(tokenizer, corpus)
        check_model(model, corpus, locate_key(model, corpus))
        check_enough(len(corpus))


def _run(
    steps: Steps,
    corpus: Datastore | Iterable[Document | str],
    about: dict[str, str | None],
    how: dict[str, Any],
) -> None:
    job, location = steps.job, steps.keys.location
    canary = steps.write_canary()
    manifest = steps.keys.manifest(
        steps.model,
        steps.tokenizer,
        entries=0,
        documents=0,
        tokens=0,
        dim=canary[CANARY_KEYS].shape[1],
        index=IndexRecord(factory="exact", requested="exact"),
        settings=SettingsRecord(k=DEFAULT_K, lmbda=0.25, temperature=1.0),
        files=(),
        **about,
    )
    states = corpus if isinstance(corpus, Datastore) else _states(steps, manifest, corpus)
    learnt = learn(steps.model, location, states, progress=steps.progress, **how)
    _write(job, manifest, learnt, unrepeated_ngram(states, how["seed"]))


def _states(steps: Steps, manifest: Manifest, corpus: Iterable[Document | str]) -> Datastore:
    """The corpus with its keys."""
    text, job = steps.write_text(corpus), steps.job
    contexts = text.contexts()
    check_enough(contexts.entries)
    steps.write_keys(text, contexts, manifest.dim)
    fields = {"entries": contexts.entries, "documents": len(text.records), "tokens": text.tokens}
    unfinished = manifest.model_copy(update={**fields, "files": job.files})
    return Datastore.unfinished(job.folder, unfinished)


def _write(job: Job, manifest: Manifest, learnt: Learnt, ngram: int | None) -> None:
    """Replaces text and keys of an unfinished folder by the rows, and finishes it."""
    number = len(learnt.tokens)
    job.write("rows", {layout.ROWS: learnt.rows})
    # The corpus and its states were the way to the rows, and do not belong to them.
    job.drop("keys")
    job.write("tokens", np.concatenate([learnt.tokens[:1], learnt.tokens]))
    title = f"learned from {learnt.record.documents:,} documents"
    job.write("documents", [DocumentRecord(0, number + 1, DOCUMENT, title)])
    settings = learnt.settings.model_copy(update={"no_repeat_ngram_size": ngram})
    job.commit(
        manifest,
        entries=number,
        documents=1,
        tokens=number + 1,
        metric=LEARNED_METRIC,
        settings=settings,
        learned=learnt.record,
    )
