"""The part of a corpus that a memory is not learnt from: it chooses the epoch and the settings."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from knn_logits.arrays import Array, Ints
from knn_logits.building.calibration import (
    entry_of_places,
    part_of_entries,
    pieces_of,
    wanted_tokens,
)
from knn_logits.engine.compatibility import vocabulary_size
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import plan
from knn_logits.lab.distillation.training import Held
from knn_logits.measure.text_pass import score_pieces, scoring_batch_tokens
from knn_logits.progress import Progress
from knn_logits.store.datastore import Datastore

# No more than this share of the corpus is held out.
_MOST = 0.1


def held_out(store: Datastore, seed: int) -> Array:
    """Chooses whole documents, or else the end of the corpus.

    Args:
        store: A datastore of the corpus.
        seed: Seed of the choice.

    Returns:
        bool [entries].
    """
    entries = len(store)
    wanted = max(1, min(int(_MOST * entries), wanted_tokens(entries)))
    parts = part_of_entries(store)
    held = np.zeros(entries, dtype=bool)
    numbers, counts = np.unique(parts, return_counts=True)
    for place in np.random.default_rng(seed).permutation(len(numbers)).tolist():
        if held.sum() + counts[place] <= 1.5 * wanted and len(numbers) > 1:
            held |= parts == numbers[place]
        if held.sum() >= wanted:
            break
    if not held.any():
        held[-wanted:] = True
    return held


def read_held(
    model: nn.Module,
    location: KeyLocation,
    store: Datastore,
    held: Array,
    numbers: Ints,
    progress: Progress,
) -> Held:
    """Runs the model over the windows in which the held-out tokens stand.

    Args:
        model: The model.
        location: Where the key is.
        store: A datastore of the corpus.
        held: bool [entries].
        numbers: int64 [vocabulary], the number of each token among the memory's; -1 for none.
        progress: Told how many tokens are read.
    """
    record, contexts = store.manifest.windows, store.contexts
    before = np.concatenate([[0], np.cumsum(held)])
    windows = [
        window
        for window in plan(contexts.first, contexts.length, record.window, record.stride)
        if before[window.first_entry + window.entries] > before[window.first_entry]
    ]
    batch = scoring_batch_tokens(input_device(model), vocabulary_size(model))
    states, targets, log_p_lm = [], [], []
    done, total = 0, int(held.sum())
    progress("held-out text", 0, total)
    with evaluating(model):
        for scored in score_pieces(model, location, pieces_of(store, windows), batch):
            own = torch.from_numpy(held[entry_of_places(store, scored.places)])
            states.append(scored.states.detach().float().cpu()[own])
            targets.append(scored.targets[own])
            log_p_lm.append(scored.log_p_lm[own])
            done += int(own.sum())
            progress("held-out text", done, total)
    tokens = torch.cat(targets)
    return Held(torch.cat(states), torch.from_numpy(numbers)[tokens], tokens, torch.cat(log_p_lm))
