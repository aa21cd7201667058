"""Finishes a datastore whose keys are computed on demand: its settings, and what it needs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from knn_logits.building.calibration import Choice, part_of_entries
from knn_logits.building.indexing import write_suffixes
from knn_logits.building.nearness import Nearness
from knn_logits.building.writing_settings import choose_writing, with_suffixes
from knn_logits.engine.compatibility import vocabulary_size
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.keys import KeySource
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import Piece, plan
from knn_logits.measure.text_pass import score_pieces, scoring_batch_tokens
from knn_logits.progress import Progress, no_progress
from knn_logits.search.neighbors import NEAREST, hits
from knn_logits.search.on_demand.retriever import OnDemandRetriever
from knn_logits.settings.config import FEWEST_CALIBRATED, KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import Job
from knn_logits.store.manifest import Manifest
from knn_logits.store.records import OnDemandRecord, SettingsRecord, WritingRecord

# What a manifest names in place of an index.
ON_DEMAND = "on-demand"
# Settings are chosen on so many tokens. The model reads the passages of each for it.
CALIBRATED_ON = 1024
# The most of the text that is left out of the search while settings are chosen on it.
_LARGEST_SHARE = 0.5
_QUERIES_AT_ONCE = 256


def finish_on_demand(
    job: Job,
    manifest: Manifest,
    model: nn.Module,
    location: KeyLocation,
    *,
    calibrate: bool,
    k: int | None,
    lmbda: float | None,
    temperature: float | None,
    suffix_weight: float | None = None,
    seed: int,
    progress: Progress,
) -> None:
    """Makes the suffix index of a datastore without keys, chooses its settings, ends the job."""
    store = Datastore.unfinished(job.folder, manifest)
    write_suffixes(job, store, progress)
    store = Datastore.unfinished(job.folder, manifest.model_copy(update={"files": job.files}))
    settings, writing = manifest.settings, None
    if calibrate:
        settings, writing = calibrated_on_demand(
            model,
            location,
            store,
            k=k,
            lmbda=lmbda,
            temperature=temperature,
            suffix_weight=suffix_weight,
            seed=seed,
            progress=progress,
        )
    job.commit(manifest, settings=settings, writing=writing)


def calibrated_tokens(settings: OnDemandRecord, entries: int) -> int:
    """Estimates how many tokens the model reads while settings are chosen.

    Half of the passages that are found were found before (LOG.md).
    """
    scored = min(CALIBRATED_ON, entries)
    passages = scored * settings.found / settings.every / 2
    every = -(-entries // settings.passage)
    read = min(passages, every) * (settings.passage + settings.context)
    return int(2 * scored + read) if entries >= FEWEST_CALIBRATED else 0


def calibrated_on_demand(
    model: nn.Module,
    location: KeyLocation,
    store: Datastore,
    *,
    k: int | None = None,
    lmbda: float | None = None,
    temperature: float | None = None,
    suffix_weight: float | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[SettingsRecord, WritingRecord | None]:
    """Chooses the settings under which a datastore without keys predicts its own text best.

    Some documents are left out of the search, and windows of them are predicted. Of a text with
    few documents, parts of documents are left out.

    Returns:
        The settings for scoring, and those for writing. Where the datastore is too small to choose
        on, the manifest's settings with the given values, and None.
    """
    choice = Choice(store, k=k, lmbda=lmbda, temperature=temperature, suffix_weight=suffix_weight)
    if choice.given:
        return choice.kept, None
    pieces, left_out = _held_out(store, seed)
    tokens = sum(piece.size - piece.skip for piece in pieces)
    if tokens < FEWEST_CALIBRATED:
        return choice.kept, None
    retriever = OnDemandRetriever(
        store, KNNConfig(k=choice.largest), source=KeySource(model, location), without=left_out
    )
    distances, known = [], []
    done = 0
    batch = scoring_batch_tokens(input_device(model), vocabulary_size(model))
    progress("calibration", 0, tokens)
    with evaluating(model):
        for scored in score_pieces(model, location, pieces, batch):
            for first in range(0, len(scored.targets), _QUERIES_AT_ONCE):
                some = scored[first : first + _QUERIES_AT_ONCE]
                neighbors = retriever.search(some.states, some.prefixes).to("cpu")
                choice.add(neighbors, some.targets, some.log_p_lm, some.prefixes)
                nearest = neighbors.padded(max(NEAREST, neighbors.k)).nearest(NEAREST)
                distances.append(nearest.nearness)
                known.append(hits(neighbors, some.targets))
                done += neighbors.rows
                progress("calibration", done, tokens)
    settings = choice.best()
    writing = choose_writing(
        store,
        Nearness(torch.cat(distances), torch.cat(known)),
        k=k,
        lmbda=lmbda,
        temperature=temperature,
        seed=seed,
    )
    if writing is not None:
        # Pointers lead to entries whose keys nobody has computed.
        writing = writing.model_copy(update={"retomaton": False})
    return settings, with_suffixes(writing, settings)


def _held_out(store: Datastore, seed: int) -> tuple[list[Piece], np.ndarray]:
    """Draws windows of text, and the entries of all documents that they are from.

    Returns:
        The windows, and int64 [entries], ascending.
    """
    record, contexts = store.manifest.windows, store.contexts
    parts = part_of_entries(store)
    sizes = np.bincount(parts)
    windows = list(plan(contexts.first, contexts.length, record.window, record.stride))
    wanted = min(CALIBRATED_ON, len(store))
    pieces: list[Piece] = []
    away: set[int] = set()
    held = entries = 0
    for number in np.random.default_rng(seed).permutation(len(windows)).tolist():
        window = windows[number]
        if entries >= wanted:
            break
        own = set(parts[window.first_entry : window.first_entry + window.entries].tolist())
        size = int(sum(sizes[one] for one in own - away))
        if held + size > _LARGEST_SHARE * len(store):
            continue
        away |= own
        held += size
        entries += window.entries
        tokens = np.asarray(store.tokens[window.start : window.start + window.size + 1])
        pieces.append(Piece(tokens, window.skip, window.start))
    return pieces, np.flatnonzero(np.isin(parts, sorted(away)))
