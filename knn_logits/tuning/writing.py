"""Settings and gates written into a datastore, where they are worth it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from knn_logits.arrays import Array
from knn_logits.datastore.files import write_arrays
from knn_logits.datastore.job import begin
from knn_logits.datastore.lock import locked
from knn_logits.datastore.manifest import SettingsRecord, read_manifest
from knn_logits.datastore.store import Datastore
from knn_logits.gating.stored import StoredGate, gate_arrays
from knn_logits.tuning.result import Tuning


def refusal(result: Tuning, before: tuple[int, int, int]) -> str | None:
    """Why what was found should not be stored in place of what is; None where it may be.

    Args:
        result: What `tune` found.
        before: The place of the settings stored in its grid.
    """
    overlap, verdict, gate = result.overlap, result.verdict, result.gate
    if overlap is not None and overlap.held:
        return (
            f"{overlap}, and settings chosen on it are bad for any other; give text that is not in "
            "the datastore, or say --allow-overlap (allow_overlap=True)"
        )
    assert verdict is not None
    forced = "; --force (force=True) writes it all the same"
    if result.bleu is not None:
        scores = result.bleu.held_out
        if scores["chosen"] > scores["before"] or result.place == before:
            return None
        return (
            f"BLEU on held-out pairs is {scores['chosen']:.2f}, no better than "
            f"{scores['before']:.2f} with the settings stored{forced}"
        )
    if gate is not None:
        if not gate.verdict.better:
            return gate.verdict.reason(f"the gate ({gate.kind})", gate.against) + forced
        if verdict.ratio <= 1.0:
            return None
    if verdict.better or result.place == before:
        return None
    return verdict.reason("the choice", "the settings stored") + forced


def write_settings(
    store: Datastore,
    k: int,
    lmbda: float,
    temperature: float,
    gate: StoredGate | None = None,
    *,
    keep_gate: bool = False,
) -> None:
    """Stores settings in a datastore, marked as tuned, and a gate beside them.

    Args:
        store: The datastore.
        k: Neighbors a query.
        lmbda: Weight of the neighbors where no gate is used.
        temperature: Temperature of the softmax over the neighbors.
        gate: Used from now on where no `lmbda` is given; with None the number is, and a gate that
            was stored before is gone.
        keep_gate: Without a gate, leave one that was stored before where it is.

    Raises:
        BusyError: when another process is writing the datastore.
        StorageError: when the disk is full.
    """
    record = SettingsRecord(k=k, lmbda=lmbda, temperature=temperature, calibrated=True, tuned=True)
    folder = store.folder.resolve()
    if gate is None:
        with locked(folder):
            # As it is now: another process may have changed the datastore since it was opened.
            manifest = read_manifest(folder)
            if keep_gate or manifest.file("gate") is None:
                manifest.model_copy(update={"settings": record}).write(folder)
                return
    arrays = gate_arrays(gate) if gate is not None else None
    plan = {"settings": repr(record), "gate": _identity(*arrays) if arrays else "none"}
    with begin(folder, "tune", plan) as job:
        manifest = read_manifest(folder)
        # Settings alone may have been written since.
        if job.ended and manifest.settings == record:
            job.give_up()
            return
        job.drop("gate")
        if arrays is not None:
            write_arrays(job.path("gate"), *arrays)
            job.note(job.path("gate"))
        job.commit(manifest, without={"gate"}, settings=record)


def _identity(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> str:
    """SHA-256 of a gate."""
    facts = [[name, arrays[name].dtype.name, arrays[name].shape] for name in sorted(arrays)]
    digest = hashlib.sha256(json.dumps([facts, metadata], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
