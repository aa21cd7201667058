"""Decides whether to store settings and gates in a datastore, and stores them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from knn_logits.arrays import Array
from knn_logits.measure.tune.result import Tuning
from knn_logits.mixture.gates.stored import StoredGate, gate_arrays
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import locked
from knn_logits.store.job import begin
from knn_logits.store.manifest import put_manifest, read_manifest
from knn_logits.store.records import SettingsRecord


def refusal(result: Tuning, before: tuple[int, int, int] | None) -> str | None:
    """Says why a result should not replace the stored settings; None if it may."""
    overlap, verdict, gate = result.overlap, result.verdict, result.gate
    if overlap is not None and overlap.held:
        return (
            f"{overlap}, and settings chosen on such text are bad for any other; give text that is "
            "not in the datastore, or --allow-overlap (allow_overlap=True)"
        )
    assert verdict is not None
    forced = "; --force (force=True) writes it anyway"
    if result.bleu is not None:
        scores = result.bleu.held_out
        if scores["chosen"] > scores["before"] or result.place == before:
            return None
        return (
            f"BLEU on held-out pairs is {scores['chosen']:.2f}, not better than "
            f"{scores['before']:.2f} with the stored settings{forced}"
        )
    if gate is not None:
        if not gate.verdict.better:
            return gate.verdict.reason(f"the gate ({gate.kind})", gate.against) + forced
        if verdict.ratio <= 1.0:
            return None
    if verdict.better or result.place == before:
        return None
    return verdict.reason("the choice", "the stored settings") + forced


def write_settings(
    store: Datastore,
    k: int,
    lmbda: float,
    temperature: float,
    gate: StoredGate | None = None,
    *,
    keep_gate: bool = False,
    suffix_weight: float = 1.0,
) -> None:
    """Stores settings in a datastore, marked as tuned, and a gate with them."""
    record = SettingsRecord(
        k=k,
        lmbda=lmbda,
        temperature=temperature,
        suffix_weight=suffix_weight,
        calibrated=True,
        tuned=True,
    )
    folder = store.folder.resolve()
    if gate is None:
        with locked(folder):
            # The manifest is read again, since another process may have changed the datastore.
            manifest = read_manifest(folder)
            if keep_gate or manifest.file("gate") is None:
                put_manifest(folder, manifest.model_copy(update={"settings": record}))
                return
    arrays = gate_arrays(gate) if gate is not None else None
    plan = {"settings": repr(record), "gate": _identity(*arrays) if arrays else "none"}
    with begin(folder, "tune", plan) as job:
        manifest = read_manifest(folder)
        # Only the settings may have changed since.
        if job.ended and manifest.settings == record:
            job.give_up()
            return
        job.drop("gate")
        if arrays is not None:
            job.write("gate", *arrays)
        job.commit(manifest, without={"gate"}, settings=record)


def _identity(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> str:
    """Computes the SHA-256 of a gate."""
    facts = [[name, arrays[name].dtype.name, arrays[name].shape] for name in sorted(arrays)]
    digest = hashlib.sha256(json.dumps([facts, metadata], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
