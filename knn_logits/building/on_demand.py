"""Chooses the settings of a datastore whose keys are computed on demand."""

from __future__ import annotations

import numpy as np

from knn_logits.building.planning import BuildPlan, complete
from knn_logits.building.settings_choice import (
    Choice,
    draw_windows,
    part_of_entries,
    pieces_of,
    predicted_tokens,
    score_blocks,
)
from knn_logits.building.steps import Steps
from knn_logits.engine.keys import KeySource
from knn_logits.engine.windows import Piece, TextWindow
from knn_logits.search.on_demand import OnDemandRetriever
from knn_logits.settings.config import FEWEST_CALIBRATED, KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import SettingsRecord

# The name in a manifest in place of an index.
ON_DEMAND = "on-demand"
# Number of tokens that settings are chosen on. The model reads the passages of each for it.
CALIBRATED_ON = 1024
# The most of the text that is left out of the search while settings are chosen on it.
_LARGEST_SHARE = 0.5
_QUERIES_AT_ONCE = 256


def choose_on_demand(steps: Steps, plan: BuildPlan, store: Datastore) -> SettingsRecord:
    """Leaves documents out of the search, and chooses what predicts windows of them best."""
    fixed, seed, location = plan.fixed, plan.index.seed, plan.keys.location
    choice = Choice(store, fixed)
    if complete(fixed):
        return choice.default
    pieces, hidden = _held_out(store, seed)
    if predicted_tokens(pieces) < FEWEST_CALIBRATED:
        return choice.default
    retriever = OnDemandRetriever(
        store, KNNConfig(k=choice.largest), source=KeySource(steps.model, location), without=hidden
    )
    for scores in score_blocks(steps.model, location, pieces, _QUERIES_AT_ONCE, steps.progress):
        choice.add(retriever.search(scores.states, scores.prefixes).to("cpu"), scores)
    return choice.best()


def _held_out(store: Datastore, seed: int) -> tuple[list[Piece], np.ndarray]:
    """Draws windows of text, and the entries, ascending, of all documents that they are from."""
    parts = part_of_entries(store)
    sizes, hidden = np.bincount(parts), np.zeros(int(parts.max(initial=0)) + 1, bool)

    def fits(window: TextWindow) -> bool:
        inside = hidden.copy()
        inside[parts[window.first_entry : window.first_entry + window.entries]] = True
        if sizes[inside].sum() > _LARGEST_SHARE * len(store):
            return False
        hidden[:] = inside
        return True

    windows = list(draw_windows(store, min(CALIBRATED_ON, len(store)), seed, fits))
    return pieces_of(store, windows), np.flatnonzero(hidden[parts])
