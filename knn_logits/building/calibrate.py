"""`calibrate` fits a new datastore to its own text: its settings and its gate."""

from __future__ import annotations

from dataclasses import dataclass

from knn_logits.building.gate_fitting import write_gate
from knn_logits.building.nearness import unrepeated_ngram
from knn_logits.building.on_demand import choose_on_demand
from knn_logits.building.planning import BuildPlan
from knn_logits.building.settings_choice import choose_settings, warn_of_repeats
from knn_logits.building.steps import Steps
from knn_logits.index.base import Index
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import GateRecord, SettingsRecord


@dataclass(frozen=True)
class Calibration:
    """The part of a calibration that a manifest keeps."""

    settings: SettingsRecord
    gate: GateRecord | None  # of the gate, which is in the job's folder


def calibrate(steps: Steps, plan: BuildPlan, store: Datastore, index: Index | None) -> Calibration:
    """Calibrates what a build's plan leaves open; `index` is None for keys on demand."""
    settings, seed, gate = store.manifest.settings, plan.index.seed, None
    if plan.calibrate:
        warn_of_repeats(store, seed)
        if index is None:
            settings = choose_on_demand(steps, plan, store)
        else:
            settings = choose_settings(
                steps.model,
                plan.keys.location,
                store,
                index,
                fixed=plan.fixed,
                pairs=plan.keys.pairs,
                seed=seed,
                progress=steps.progress,
            )
        if plan.keys.pairs is None:
            ngram = unrepeated_ngram(store, seed)
            settings = settings.model_copy(update={"no_repeat_ngram_size": ngram})
    if plan.fits_gate and index is not None:
        gate = write_gate(steps, plan, store, settings, index)
    return Calibration(settings, gate)
