"""Gates as plain arrays, in a .safetensors file of their own or in a datastore's.

The metadata names the kind and the metric; the arrays are the gate's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from knn_logits.arrays import Array
from knn_logits.config import check_metric
from knn_logits.datastore.files import write_arrays
from knn_logits.datastore.reading import read_arrays
from knn_logits.datastore.store import Datastore
from knn_logits.errors import ConfigError, DamagedError
from knn_logits.gating.distance import DistanceGate
from knn_logits.gating.gate import Gate, split_lmbda
from knn_logits.gating.learned import LearnedGate
from knn_logits.gating.meta_k import MetaKGate
from knn_logits.gating.skipping import ConfidenceSkip, LearnedSkip

_VERSION = "1"
_SKIP = "skip."
# The gates that search always.
WeightGate: TypeAlias = DistanceGate | LearnedGate | MetaKGate
StoredGate: TypeAlias = WeightGate | ConfidenceSkip | LearnedSkip
_KINDS: dict[str | None, type[DistanceGate] | type[LearnedGate] | type[MetaKGate]] = {
    DistanceGate.kind: DistanceGate,
    LearnedGate.kind: LearnedGate,
    MetaKGate.kind: MetaKGate,
}
_SKIPS: dict[str, type[ConfidenceSkip] | type[LearnedSkip]] = {
    ConfidenceSkip.skip: ConfidenceSkip,
    LearnedSkip.skip: LearnedSkip,
}
# In place of a gate, for one that skips: a constant λ.
_NUMBER = "number"


def gate_arrays(gate: StoredGate) -> tuple[dict[str, Array], dict[str, str]]:
    """A gate as the arrays and the metadata of a .safetensors file.

    Raises:
        ConfigError: when it holds a gate of the user's own, which has no such form.
    """
    arrays: dict[str, Array] = {}
    metadata = {"version": _VERSION}
    weight: object = gate
    if isinstance(gate, (ConfidenceSkip, LearnedSkip)):
        metadata["skip"] = gate.skip
        arrays = {_SKIP + name: value for name, value in gate.skip_arrays().items()}
        weight = gate.inner
    if isinstance(weight, (DistanceGate, LearnedGate, MetaKGate)):
        return arrays | weight.to_arrays(), metadata | {
            "gate": weight.kind,
            "metric": weight.metric,
        }
    if isinstance(weight, float):
        return arrays | {"lmbda": np.array([weight], np.float32)}, metadata | {"gate": _NUMBER}
    raise ConfigError(f"a {type(weight).__name__} has no form in a file: save what it is made of")


def gate_from_arrays(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], *, name: str = "the file"
) -> StoredGate:
    """A gate from what `gate_arrays` gave.

    Args:
        arrays: As read; their shapes and values are checked.
        metadata: As read.
        name: The file's, for errors.

    Raises:
        DamagedError: when they are no gate.
    """
    kind, version, skip = metadata.get("gate"), metadata.get("version"), metadata.get("skip")
    try:
        if version != _VERSION or (kind not in _KINDS and (kind != _NUMBER or skip is None)):
            raise ValueError(f"kind {kind!r:.40}, version {version!r:.40}")
        weight: float | StoredGate
        if kind == _NUMBER:
            (weight,) = arrays["lmbda"].astype(float).tolist()
        else:
            weight = _KINDS[kind].from_arrays(arrays, check_metric(metadata.get("metric", "")))
        if skip is not None:
            start = len(_SKIP)
            own = {key[start:]: one for key, one in arrays.items() if key.startswith(_SKIP)}
            return _SKIPS[skip].from_arrays(weight, own)
        assert not isinstance(weight, float)
        return weight
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{name} holds no gate that this version can read ({error}): fit it again"
        ) from error


def stored_gate(store: Datastore) -> StoredGate | None:
    """The gate that a datastore holds, None when it has none.

    Raises:
        DamagedError: when its file is no gate, or one of another metric than the datastore's.
    """
    saved = store.gate_arrays()
    if saved is None:
        return None
    gate = gate_from_arrays(*saved, name=f"the gate of {store.folder}")
    if gate.metric not in (None, store.manifest.metric):
        raise DamagedError(
            f"the gate of {store.folder} reads {gate.metric} distances, not "
            f"{store.manifest.metric}: fit another with `knn-logits tune --gate ... --write`"
        )
    return gate


def lmbda_or_gate(lmbda: float | Gate | None, store: Datastore) -> tuple[float | None, Gate | None]:
    """What weighs the neighbors: a number, a gate, or what a datastore has of its own.

    Args:
        lmbda: As given; None takes the datastore's gate if it holds one.
        store: The datastore, the first of several.

    Returns:
        The number and the gate; both are None where the datastore's number holds.

    Raises:
        ConfigError: when the gate was fitted for another metric.
        DamagedError: when the datastore's gate cannot be read.
    """
    if lmbda is None:
        lmbda = stored_gate(store)
    return split_lmbda(lmbda, store.manifest.metric)


def save_gate(gate: StoredGate, path: str | os.PathLike[str]) -> None:
    """Writes a gate as one .safetensors file, whole or not at all.

    Raises:
        ConfigError: when it holds a gate of the user's own, which has no form in a file.
        DatastoreError: when the disk is full or the folder cannot be written.
    """
    arrays, metadata = gate_arrays(gate)
    write_arrays(Path(path), arrays, metadata)


def load_gate(path: str | os.PathLike[str]) -> StoredGate:
    """Reads a gate that `save_gate` wrote.

    Raises:
        DamagedError: when the file is missing, damaged, or holds no gate of a known kind.
    """
    return gate_from_arrays(*read_arrays(Path(path)), name=str(path))
