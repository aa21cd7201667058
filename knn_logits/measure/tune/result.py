"""The result of `tune`: the choice, every setting that was tried, and how it is stored."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knn_logits.measure.confidence import Verdict
from knn_logits.measure.likelihood import Grid
from knn_logits.measure.overlap import Overlap
from knn_logits.measure.tune.gates import GateTuning
from knn_logits.mixture.gates.gate import FittedGate
from knn_logits.mixture.gates.stored import gate_arrays
from knn_logits.settings.registry import stored_names
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import locked
from knn_logits.store.job import begin
from knn_logits.store.manifest import read_manifest
from knn_logits.store.records import GateRecord, SettingsRecord


@dataclass(frozen=True)
class Part:
    """One part of the text."""

    documents: int  # number of whole documents in it. It is 1 if the part is half of one document
    tokens: int  # number of scored tokens
    lm: float  # perplexity of the model alone
    before: float  # perplexity of the mixture under the datastore's settings
    perplexity: float  # perplexity of the mixture under the chosen settings


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Attributes:
        chosen: The chosen settings. `k`, `lmbda` and `temperature` are also attributes.
        chosen_on: The part that the settings were chosen on.
        held_out: The other part, whose numbers can be trusted.
        at_the_edge: Names of settings whose best value is the largest or smallest tried.
        grid: The settings that were tried.
        perplexities: float64 [ks, temperatures, lmbdas], on the part that they were chosen on.
        held_out_perplexities: The same on the other part.
        settings: The conditions of the numbers: model, datastore, windows.
        seconds: Seconds that the pass over the texts took, without loading.
        gate: The gate that was fitted and its results, if a gate was asked for.
        held_out_documents: Numbers of the held-out documents, in the order of reading; empty for
            halves of a single document.
        verdict: The comparison of the choice with the stored settings, on the held-out part.
        overlap: How much of the text the datastore holds; None if it was not checked.
        written: Whether the choice was stored in the datastore.
        refused: Why the choice was not stored, if it was to be.
    """

    chosen: SettingsRecord
    chosen_on: Part
    held_out: Part
    at_the_edge: tuple[str, ...]
    grid: Grid
    perplexities: npt.NDArray[np.float64]
    held_out_perplexities: npt.NDArray[np.float64]
    settings: dict[str, Any]
    seconds: float
    gate: GateTuning | None = None
    held_out_documents: tuple[int, ...] = ()
    verdict: Verdict | None = None
    overlap: Overlap | None = None
    written: bool = False
    refused: str | None = None

    @property
    def k(self) -> int:
        """The chosen number of neighbors of each query."""
        return self.chosen.k

    @property
    def lmbda(self) -> float:
        """The chosen weight of the neighbors."""
        return self.chosen.lmbda

    @property
    def temperature(self) -> float:
        """The chosen temperature of the softmax over the neighbors."""
        return self.chosen.temperature

    def to_dict(self) -> dict[str, Any]:
        """Returns the choice and its perplexities, for JSON."""
        plain = ("settings", "written", "refused")
        parts = {name: getattr(self, name) for name in ("gate", "verdict", "overlap")}
        return {
            **{name: getattr(self.chosen, name) for name in stored_names()},
            **{name: getattr(self, name) for name in plain},
            **{name: part and part.to_dict() for name, part in parts.items()},
            "perplexity": self.held_out.perplexity,
            "perplexity_lm": self.held_out.lm,
            "perplexity_before": self.held_out.before,
            "settings_tried": self.grid.settings,
            "seconds": round(self.seconds, 3),
            "tokens": self.chosen_on.tokens + self.held_out.tokens,
            "chosen_on": asdict(self.chosen_on),
            "held_out": asdict(self.held_out),
            "at_the_edge": list(self.at_the_edge),
        }


def refusal(result: Tuning, stored: SettingsRecord) -> str | None:
    """Says why a result should not replace the stored settings; None if it may."""
    overlap, verdict, gate = result.overlap, result.verdict, result.gate
    if overlap is not None and overlap.held:
        return (
            f"{overlap}, and settings chosen on such text are bad for any other; give text that is "
            "not in the datastore, or --allow-overlap (allow_overlap=True)"
        )
    assert verdict is not None
    forced = "; --force (force=True) writes it anyway"
    if gate is not None:
        if not gate.verdict.better:
            return gate.verdict.reason("the gate", "the best number") + forced
        if verdict.ratio <= 1.0:
            return None
    same = all(getattr(result.chosen, name) == getattr(stored, name) for name in stored_names())
    if verdict.better or same:
        return None
    return verdict.reason("the choice", "the stored settings") + forced


def write_settings(
    store: Datastore,
    record: SettingsRecord,
    gate: FittedGate | None = None,
    *,
    judged: GateRecord | None = None,
    keep_gate: bool = False,
) -> None:
    """Stores settings in a datastore, and a gate with the record of the build that fitted it."""
    folder = store.folder.resolve()
    if gate is None:
        with locked(folder):
            # The manifest is read again, since another process may have changed the datastore.
            manifest = read_manifest(folder)
            if keep_gate or manifest.file("gate") is None:
                manifest.model_copy(update={"settings": record}).write(folder)
                return
    arrays = gate_arrays(gate) if gate is not None else None
    with begin(folder, "tune", {}) as job:
        job.drop("gate")
        if arrays is not None:
            job.write("gate", *arrays)
        manifest = read_manifest(folder)
        job.commit(manifest, without={"gate"}, settings=record, gate=judged)
