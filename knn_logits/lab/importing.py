"""`import_datastore` converts a datastore of an earlier kNN-LM system to this package's format.

Its values are one stream, which becomes one document, after a token in place of the unknown first.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.indexing import make_index, write_index
from knn_logits.building.planning import KeyPlan
from knn_logits.building.recall import measured
from knn_logits.building.steps import Steps
from knn_logits.engine.compatibility import vocabulary_size
from knn_logits.engine.forward import evaluating, input_device, key_states
from knn_logits.engine.location import DEFAULT_KEY, KeyLocation, find_key, is_encoder_decoder
from knn_logits.engine.pairs import context_length
from knn_logits.engine.windows import resolve
from knn_logits.errors import ConfigError, DamagedError, DatastoreError, MismatchError
from knn_logits.index import plain_arrays
from knn_logits.index.base import Index
from knn_logits.index.faiss_library import FaissIndex, read_ivfpq
from knn_logits.index.kinds import Kind
from knn_logits.lab.legacy import (
    LegacyFiles,
    find_files,
    key_parts,
    read_clusters,
    read_keys,
    read_values,
    written_entries,
)
from knn_logits.metrics import DEFAULT_METRIC
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.settings.config import IndexConfig, KNNConfig, WindowConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import Job, begin
from knn_logits.store.layout import CANARY_KEYS
from knn_logits.store.records import IndexRecord, SettingsRecord, WindowRecord
from knn_logits.store.writer import write_keys, writing_text

logger = logging.getLogger(__name__)

# The temperature that these systems search with.
_TEMPERATURE = 1.0
# The distance of a key from the model's own key at the same place, divided by the distance at other
# places. The right model gave 0.34 to 0.82 under another context, and other weights 1.00 to 1.01.
_OTHER_MODEL = 0.95
_SPAN = 256
_LEAST_SPAN = 64
_SPANS = 4


def import_datastore(
    model: nn.Module,
    tokenizer: Any,
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    key: str = DEFAULT_KEY,
    window: WindowConfig | None = None,
    overwrite: bool = False,
    license: str | None = None,
    source_text: str | None = None,
    progress: Progress = no_progress,
) -> Datastore:
    """Makes a datastore from the files of knn-transformers, knnlm, knn-models and their relatives.

    The other system's index is taken over if there is one; FAISS reads its file, and `build_index`
    replaces it. No pickle is loaded. Sizes and number formats are found from the files. Entries
    at the end that the other system never wrote are left out. Sources are passages of one stream,
    since the files do not name documents.

    Args:
        model: The model that built it.
        tokenizer: Its tokenizer.
        source: Folder of the files. If it holds several datastores, the file of values.
        folder: The folder to write. It must be new or empty.
        key: The place of the key in the model.
        window: Number of tokens that the model sees at once when text is scored. The files do not
            say what the other system used.
        overwrite: Replace an existing datastore.
        license: Licence of the text, kept in the manifest.
        source_text: Where the text is from, kept in the manifest.
        progress: A callback that is told how far the work is.

    Returns:
        The datastore. Its temperature is 1, as in these systems.

    Raises:
        CorpusError: when the files are missing.
        MismatchError: when the files do not belong to this model.
        DamagedError: when a file holds something else than it should.
        DatastoreError: when there are neither keys nor an index, or the folder cannot be used.
        StorageError: when the disk is full.
    """
    files = find_files(Path(source))
    if files.keys is None and files.index is None:
        raise DatastoreError(
            f"there are neither keys nor an index next to {files.values}, so nothing can be "
            "searched: add keys or an index"
        )
    size, stride = resolve(window or WindowConfig(), context_length(model))
    windows = WindowRecord(window=size, stride=stride, concatenate=True)
    plan = KeyPlan(find_key(model, key), windows, "float16", 1)
    text = plan.as_text(model, tokenizer) | {"import of": str(files.values.resolve())}
    with (
        begin(Path(folder).resolve(), "build", text, overwrite=overwrite) as job,
        evaluating(model),
    ):
        steps = Steps(job, model, tokenizer, plan, progress)
        _convert(steps, files, license=license, source=source_text)
    return Datastore(folder)


def _convert(steps: Steps, files: LegacyFiles, **about: str | None) -> None:
    job, model, tokenizer, progress = steps.job, steps.model, steps.tokenizer, steps.progress
    canary = steps.write_canary()
    dim = int(canary[CANARY_KEYS].shape[1])
    old = _old_index(files, dim, progress)
    vocabulary = vocabulary_size(model)
    values = read_values(files, dim, vocabulary, old[0].size if old else None)
    keys = read_keys(files.keys, len(values), dim) if files.keys else None
    if keys is None:
        entries = len(values)
        logger.warning(
            "there are no keys: refine, add, compact and another index are not possible, the "
            "recall is unknown, and nothing shows whether the index belongs to this model"
        )
    else:
        entries = written_entries(keys, values)
        _check_keys(model, steps.keys.location, keys, values[:entries])
    if entries < len(values):
        logger.warning(f"{len(values) - entries} entries at the end were never written")
    _write_text(job, tokenizer, values[:entries], vocabulary, files)
    if files.clusters is not None:
        job.write("clusters", read_clusters(files.clusters, len(values))[:entries])
    dtype = "float32" if keys is not None and keys.dtype.itemsize == 4 else "float16"
    if keys is not None:
        advance = counter(progress, "keys", entries, job.keys)
        write_keys(job, key_parts(keys[:entries], job.keys), advance)
    manifest = steps.keys.manifest(
        model,
        tokenizer,
        entries=entries,
        documents=1,
        tokens=entries + 1,
        dim=dim,
        dtype=dtype,
        metric=old[0].metric if old else DEFAULT_METRIC,
        index=IndexRecord(factory="exact", requested="import"),
        settings=SettingsRecord(**KNNConfig(temperature=_TEMPERATURE).stored_values()),
        files=job.files,
        **about,
    )
    store = Datastore.unfinished(job.folder, manifest)
    if old is None:
        index, record = make_index(store, IndexConfig(), progress=progress)
    else:
        index, record = _taken_over(store, *old, progress)
    write_index(job, index, record)
    job.commit(manifest, index=record)


def _old_index(files: LegacyFiles, dim: int, progress: Progress) -> tuple[FaissIndex, str] | None:
    """The other system's index and its type; None if there is none, or it cannot be read."""
    if files.index is None:
        return None
    progress("reading the index", 0, None)
    try:
        raw, factory, metric = read_ivfpq(files.index)
        kind, arrays = Kind(factory, raw.d, metric), plain_arrays.to_arrays(raw)
        old = plain_arrays.from_arrays(arrays, kind, raw.ntotal, nprobe=raw.nprobe)
    except (DamagedError, ConfigError) as error:
        if files.keys is None:
            raise
        logger.warning(f"{error}; a new index is built from the keys instead")
        return None
    if old.dim != dim:
        raise MismatchError(
            f"{files.index} contains {old.dim}-dimensional vectors, but the model's keys have "
            f"dimension {dim}: use the model that built it, or set the location of its keys "
            "with --key"
        )
    return old, factory


def _write_text(
    job: Job, tokenizer: Any, values: Array, vocabulary: int, files: LegacyFiles
) -> None:
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    first = next((token for token in ends if token is not None and token < vocabulary), 0)
    with writing_text(job, concatenate=True, vocabulary=vocabulary) as writer:
        tokens = np.concatenate([[first], np.asarray(values, np.int64)])
        writer.add(tokens, id=files.values.name, title=f"all of {files.values.name}")


def _taken_over(
    store: Datastore, index: FaissIndex, factory: str, progress: Progress
) -> tuple[Index, IndexRecord]:
    """The other system's index over the entries of the datastore."""
    index.remove(np.arange(len(store), index.size))  # which were never written
    record = IndexRecord(factory=factory, requested="import", nprobe=index.nprobe)
    if store.has_keys:
        record = measured(store, index, record, progress)
    return index, record


def _check_keys(model: nn.Module, location: KeyLocation, keys: Array, values: Array) -> None:
    """Refuses keys that are as far from this model's states as those at other places are."""
    span = min(_SPAN, context_length(model) or _SPAN, len(values) // 2)
    if is_encoder_decoder(model) or span < _LEAST_SPAN:
        return
    distances, shuffled = [], []
    for start in np.linspace(0, len(values) - span - 1, _SPANS).astype(np.int64).tolist():
        tokens = torch.from_numpy(np.array(values[start : start + span], np.int64))
        inputs = {"input_ids": tokens.unsqueeze(0).to(input_device(model))}
        states = key_states(model, location, inputs)[0].float().cpu().numpy()
        stored = np.asarray(keys[start + 1 : start + span + 1], np.float32)
        # Only places with a long context are compared.
        states, stored = states[span // 2 :], stored[span // 2 :]
        distances.append(np.linalg.norm(states - stored, axis=1))
        stored = np.roll(stored, len(stored) // 2, axis=0)
        shuffled.append(np.linalg.norm(states - stored, axis=1))
    chance = float(np.median(np.concatenate(shuffled)))
    error = float(np.median(np.concatenate(distances))) / max(chance, 1e-12)
    if not error <= _OTHER_MODEL:
        raise MismatchError(
            f"the keys are not this model's states at {location}: they are no closer than chance "
            f"({error:.2f}); use the model that built them, or set the location of its keys with "
            "--key"
        )
