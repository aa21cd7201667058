"""Gates as plain arrays, in a .safetensors file or in a datastore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, DamagedError
from knn_logits.metrics import check_metric
from knn_logits.mixture.gates.distance import DistanceGate
from knn_logits.mixture.gates.fitted import FittedGate
from knn_logits.mixture.gates.learned import LearnedGate
from knn_logits.mixture.gates.meta_k import MetaKGate
from knn_logits.mixture.gates.rescorer import RescorerGate
from knn_logits.mixture.gates.skipping import ConfidenceSkip, LearnedSkip, Skip
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import write_arrays
from knn_logits.store.reading import read_arrays

_VERSION = "1"
_SKIP = "skip."
# A new gate is a line here, and a file.
GATES: dict[str, type[FittedGate]] = {
    gate.kind: gate for gate in (LearnedGate, MetaKGate, RescorerGate, DistanceGate)
}
SKIPS: dict[str, type[Skip]] = {skip.skip: skip for skip in (LearnedSkip, ConfidenceSkip)}
StoredGate: TypeAlias = FittedGate | Skip
# This stands for a constant λ in place of a gate, within a gate that skips.
_NUMBER = "number"


def gate_arrays(gate: StoredGate) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns a gate as the arrays and the metadata of a .safetensors file."""
    arrays: dict[str, Array] = {}
    metadata = {"version": _VERSION}
    weight: object = gate
    if isinstance(gate, Skip):
        metadata["skip"] = gate.skip
        arrays = {_SKIP + name: value for name, value in gate.skip_arrays().items()}
        weight = gate.inner
    if isinstance(weight, FittedGate):
        return arrays | weight.to_arrays(), metadata | {
            "gate": weight.kind,
            "metric": weight.metric,
        }
    if isinstance(weight, float):
        return arrays | {"lmbda": np.array([weight], np.float32)}, metadata | {"gate": _NUMBER}
    raise ConfigError(
        f"a {type(weight).__name__} is not a gate of this package and cannot be saved: save its "
        "parameters yourself"
    )


def gate_from_arrays(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], *, name: str = "the file"
) -> StoredGate:
    """Makes a gate from the result of `gate_arrays`."""
    kind, version, skip = metadata.get("gate"), metadata.get("version"), metadata.get("skip")
    try:
        if version != _VERSION or (kind not in GATES and (kind != _NUMBER or skip is None)):
            raise ValueError(f"kind {kind!r:.40}, version {version!r:.40}")
        weight: float | FittedGate
        if kind == _NUMBER:
            (weight,) = arrays["lmbda"].astype(float).tolist()
        else:
            weight = GATES[kind].from_arrays(arrays, check_metric(metadata.get("metric", "")))
        if skip is not None:
            start = len(_SKIP)
            skip_arrays = {
                key[start:]: array for key, array in arrays.items() if key.startswith(_SKIP)
            }
            return SKIPS[skip].from_arrays(weight, skip_arrays)
        assert not isinstance(weight, float)
        return weight
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{name} is not a gate that this version can read ({error}): refit it"
        ) from error


def stored_gate(store: Datastore) -> StoredGate | None:
    """Reads the gate of a datastore; None if the datastore has no gate."""
    saved = store.gate_arrays()
    if saved is None:
        return None
    gate = gate_from_arrays(*saved, name=f"the gate of {store.folder}")
    if gate.metric not in (None, store.manifest.metric):
        raise DamagedError(
            f"the gate of {store.folder} was fitted for the metric {gate.metric}, not "
            f"{store.manifest.metric}: fit another with `knn-logits tune --gate ... --write`"
        )
    return gate


def save_gate(gate: StoredGate, path: str | os.PathLike[str]) -> None:
    """Writes a gate as one .safetensors file, whole or not at all.

    Raises:
        ConfigError: when the gate is or contains an object of the user's, which cannot be saved.
        DatastoreError: when the disk is full or the folder cannot be written.
    """
    arrays, metadata = gate_arrays(gate)
    write_arrays(Path(path), arrays, metadata)


def load_gate(path: str | os.PathLike[str]) -> StoredGate:
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
            "gate.safetensors of a datastore that `knn-logits tune --gate KIND --write` made"
        ) from error
    return gate_from_arrays(*saved, name=str(path))
