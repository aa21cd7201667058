"""Settings and gates written into a datastore."""

from __future__ import annotations

from knn_logits.datastore import layout
from knn_logits.datastore.files import write_arrays
from knn_logits.datastore.job import begin
from knn_logits.datastore.lock import locked
from knn_logits.datastore.manifest import SettingsRecord, read_manifest
from knn_logits.datastore.store import Datastore
from knn_logits.gating.stored import StoredGate, gate_arrays


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
        temperature: Of the softmax over the neighbors.
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
    with begin(folder, "tune", {}) as job:
        manifest = read_manifest(folder)
        job.drop("gate")
        if arrays is not None:
            write_arrays(job.path("gate"), *arrays)
            job.note(job.path("gate"))
        others = [one for one in manifest.files if layout.kind_of(one.name) != "gate"]
        job.commit(
            manifest.model_copy(
                update={
                    "generation": job.generation,
                    "settings": record,
                    "files": job.files_with(others),
                }
            )
        )
