"""`calibrate` fits a new datastore to its own text: its settings and its gate."""

from __future__ import annotations

import numpy as np

from knn_logits.building.gate_fitting import write_gate
from knn_logits.building.planning import BuildPlan
from knn_logits.building.settings_choice import choose_settings
from knn_logits.building.steps import Steps
from knn_logits.engine.compatibility import CANARY_KEYS
from knn_logits.index.base import Index
from knn_logits.index.opening import training_sample
from knn_logits.metrics import Metric, equivalent_temperature
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import GateRecord, SettingsRecord

# A written text that repeats n tokens at once loops. n is the least for which n-grams hardly ever
# repeat within this number of tokens of the datastore.
_REPEATED, _REPEATED_WITHIN, _PLACES = 0.02, 256, 64
_NGRAMS = (4, 6, 8, 10, 12, 16, 20, 24, 32)
# Number of keys that the mean square of a key is taken over.
_QUERIES = 256


def calibrate(
    steps: Steps, plan: BuildPlan, store: Datastore, index: Index | None
) -> tuple[SettingsRecord, GateRecord | None]:
    """Calibrates what a build's plan leaves open; `index` is None for keys on demand.

    Returns:
        The settings, and the record of the gate, which is in the job's folder.
    """
    settings, seed, gate = store.manifest.settings, plan.index.seed, None
    if plan.calibrate and plan.keys.pairs is None:
        ngram = unrepeated_ngram(store, seed)
        settings = settings.model_copy(update={"no_repeat_ngram_size": ngram})
    if index is None or not plan.calibrate:
        return settings, None
    settings = choose_settings(steps, plan, store, index, settings)
    if plan.fits_gate:
        gate = write_gate(steps, plan, store, settings, index)
    return settings, gate


def like_temperature(store: Datastore, temperature: float, metric: Metric) -> float:
    """Converts a temperature that was chosen for a metric to the datastore's metric."""
    if metric == store.manifest.metric:
        return temperature
    keys = training_sample(store, _QUERIES, seed=0) if store.has_keys else store.checks[CANARY_KEYS]
    mean_square = max(float(np.square(keys).sum(axis=-1).mean()), 1e-12)
    # The number is rounded, so that going to another metric and back changes nothing.
    like = equivalent_temperature(temperature, metric, store.manifest.metric, mean_square)
    return float(f"{like:.8g}")


def unrepeated_ngram(store: Datastore, seed: int = 0) -> int | None:
    """The smallest n for which n-grams hardly ever repeat within a page; None for none."""
    tokens, size = store.tokens, _REPEATED_WITHIN
    if len(tokens) < 2 * size:
        return 8
    starts = np.random.default_rng(seed).integers(0, len(tokens) - size, _PLACES)
    pages = [np.asarray(tokens[start : start + size]).tolist() for start in starts.tolist()]
    for n in _NGRAMS:
        count = size - n + 1
        distinct = [len({tuple(page[at : at + n]) for at in range(count)}) for page in pages]
        if 1.0 - sum(distinct) / (count * len(pages)) <= _REPEATED:
            return n
    return None
