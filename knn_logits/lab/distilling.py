"""`distill`: from a datastore to a folder of learned rows that take its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from knn_logits.building.planning import PlanSettings, planned
from knn_logits.building.settings_choice import unrepeated_ngram
from knn_logits.building.steps import Steps
from knn_logits.engine.compatibility import check_model, check_tokenizer
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import find_key, is_encoder_decoder
from knn_logits.errors import ConfigError, CorpusError, ModelError
from knn_logits.lab.learning import learn
from knn_logits.metrics import LEARNED_METRIC
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import FEWEST_CALIBRATED, MOST_SEED, WindowConfig, whole_number
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import DocumentRecord
from knn_logits.store.job import begin
from knn_logits.store.layout import CANARY_KEYS
from knn_logits.store.manifest import needs_text
from knn_logits.store.records import IndexRecord
from knn_logits.store.writer import write_keys

_MAX_ROWS = 1000.0
# The id of the only document.
DOCUMENT = "learned rows"


def distill(
    model: nn.Module,
    tokenizer: Any,
    datastore: Datastore,
    folder: str | os.PathLike[str],
    *,
    rows: float = 3.0,
    epochs: int = 6,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Datastore:
    """Learns an output embedding with several rows a token, which takes the place of a datastore.

    The model stays as it is. Its state before a token is multiplied with the rows, a softmax over
    all of them is summed by token, and the result is mixed with the model's distribution. Xu, Alon
    and Neubig (2023), "Why do nearest neighbor language models work?". The folder opens wherever a
    datastore does. It keeps no text, so a vote names a row and no passage.

    A tenth of the corpus at most is held out. It chooses when learning ends, and k, λ and the
    temperature.

    Args:
        model: The causal language model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A datastore with its keys.
        folder: The folder to write. It must be new or empty.
        rows: Average number of rows per distinct token of the corpus; frequent tokens get more.
        epochs: The maximum number of passes over the corpus.
        seed: Seed of every random choice.
        overwrite: Replace an existing datastore once the rows are complete.
        progress: A callback that is told how far the work is.

    Returns:
        The finished memory, open.

    Raises:
        ConfigError: when a setting is out of its range.
        CorpusError: when the corpus is too small to hold a part of it out.
        ModelError: for an encoder-decoder model.
        MismatchError: when the datastore was built by another model.
        DatastoreError: when the folder cannot be used, or the datastore has no keys.
        BusyError: when another process is writing the folder.
        StorageError: when the disk is full.
    """
    epochs, seed = whole_number("epochs", epochs, 1), whole_number("seed", seed, 0, MOST_SEED)
    if isinstance(rows, bool) or not isinstance(rows, (int, float)) or not 0 < rows <= _MAX_ROWS:
        raise ConfigError(f"rows must be a number above 0 and at most {_MAX_ROWS:g}, not {rows!r}")
    if is_encoder_decoder(model):
        raise ModelError("a learned memory needs a causal model: use one")
    record = datastore.manifest
    needs_text(record, datastore.folder, "`distill`")
    check_tokenizer(tokenizer, datastore)
    check_model(model, datastore, find_key(model, datastore.manifest.key.name))
    if len(datastore) < FEWEST_CALIBRATED:
        raise CorpusError(
            f"the corpus has {len(datastore)} tokens to predict, but a learned memory needs "
            f"{FEWEST_CALIBRATED}: add more text"
        )
    datastore.fetch_keys(progress)
    window = WindowConfig(record.windows.window, record.windows.stride)
    plan: PlanSettings = {"key": record.key.name, "window": window}
    keys = planned(model, tokenizer, plan).keys
    how: dict[str, Any] = {"rows": float(rows), "epochs": epochs, "seed": seed}
    text = keys.as_text(model, tokenizer) | {name: f"{value:g}" for name, value in how.items()}
    text["datastore"] = record.checksum[:12]
    target = Path(folder).resolve()
    with begin(target, "build", text, overwrite=overwrite) as job, evaluating(model):
        canary = Steps(job, model, tokenizer, keys, progress).write_canary()
        learnt = learn(model, keys.location, datastore, progress=progress, **how)
        learned_rows, tokens, settings, learned = learnt
        number = len(tokens)
        job.drop("keys")  # of an earlier run
        write_keys(job, [learned_rows])
        job.write("tokens", np.concatenate([tokens[:1], tokens]))
        title = f"learned from {learned.documents:,} documents"
        job.write("documents", [DocumentRecord(0, number + 1, DOCUMENT, title)])
        loops = {"no_repeat_ngram_size": unrepeated_ngram(datastore, seed)}
        manifest = keys.manifest(
            model,
            tokenizer,
            entries=number,
            documents=1,
            tokens=number + 1,
            dim=canary[CANARY_KEYS].shape[1],
            metric=LEARNED_METRIC,
            index=IndexRecord(factory="exact", requested="exact"),
            settings=settings.model_copy(update=loops),
            learned=learned,
            files=job.files,
            license=record.license,
            source=record.source,
        )
        job.commit(manifest)
    return Datastore(target)
