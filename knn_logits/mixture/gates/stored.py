"""Gates as plain arrays, in a .safetensors file or in a datastore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, DamagedError
from knn_logits.metrics import check_metric
from knn_logits.mixture.gates.adaptive import AdaptiveGate
from knn_logits.mixture.gates.gate import FittedGate
from knn_logits.mixture.gates.meta_k import MetaKGate
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import write_arrays
from knn_logits.store.reading import read_arrays

_VERSION = "1"
# A new gate is a line here, and a file.
GATES: dict[str, type[FittedGate]] = {gate.kind: gate for gate in (AdaptiveGate, MetaKGate)}


def gate_arrays(gate: FittedGate) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns a gate as the arrays and the metadata of a .safetensors file."""
    if not isinstance(gate, FittedGate):
        raise ConfigError(
            f"a {type(gate).__name__} is not a gate of this package and cannot be saved: save its "
            "parameters yourself"
        )
    return gate.to_arrays(), {"version": _VERSION, "gate": gate.kind, "metric": gate.metric}


def gate_from_arrays(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], *, name: str = "the file"
) -> FittedGate:
    """Makes a gate from the result of `gate_arrays`."""
    kind, version = metadata.get("gate"), metadata.get("version")
    try:
        if version != _VERSION or kind not in GATES:
            raise ValueError(f"kind {kind!r:.40}, version {version!r:.40}")
        return GATES[kind].from_arrays(arrays, check_metric(metadata.get("metric", "")))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{name} is not a gate that this version can read ({error}): refit it"
        ) from error


def stored_gate(store: Datastore) -> FittedGate | None:
    """Reads the gate of a datastore; None if the datastore has no gate."""
    saved = store.gate_arrays()
    if saved is None:
        return None
    gate = gate_from_arrays(*saved, name=f"the gate of {store.folder}")
    if gate.metric != store.manifest.metric:
        raise DamagedError(
            f"the gate of {store.folder} was fitted for the metric {gate.metric}, not "
            f"{store.manifest.metric}: fit another with `knn-logits tune --gate ... --write`"
        )
    return gate


def save_gate(gate: FittedGate, path: str | os.PathLike[str]) -> None:
    """Writes a gate as one .safetensors file, whole or not at all.

    Raises:
        ConfigError: when the gate is an object of the user's, which cannot be saved.
        DatastoreError: when the disk is full or the folder cannot be written.
    """
    arrays, metadata = gate_arrays(gate)
    write_arrays(Path(path), arrays, metadata)


def load_gate(path: str | os.PathLike[str]) -> FittedGate:
    """Reads a gate that `save_gate` wrote.

    Raises:
        DamagedError: when the file is missing or damaged, or does not hold a known kind of gate.
    """
    try:
        saved = read_arrays(Path(path))
    except DamagedError as error:
        reason = (
            "it is not a .safetensors file" if Path(path).is_file() else "there is no such file"
        )
        raise DamagedError(
            f"{path} is not a gate ({reason}): use a file written by `save_gate`, or the "
            "gate.safetensors of a datastore that `knn-logits tune --gate meta-k --write` made"
        ) from error
    return gate_from_arrays(*saved, name=str(path))
