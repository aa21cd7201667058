"""Gates as plain arrays, in a .safetensors file of their own or in a datastore's.

The metadata names the kind and the metric; the arrays are the gate's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from knn_logits.config import check_metric
from knn_logits.datastore.files import write_arrays
from knn_logits.datastore.reading import read_arrays
from knn_logits.errors import DamagedError
from knn_logits.gating.distance import DistanceGate
from knn_logits.gating.learned import LearnedGate
from knn_logits.neighbors import Array

_VERSION = "1"
StoredGate = DistanceGate | LearnedGate
_KINDS: dict[str | None, type[DistanceGate] | type[LearnedGate]] = {
    DistanceGate.kind: DistanceGate,
    LearnedGate.kind: LearnedGate,
}


def gate_arrays(gate: StoredGate) -> tuple[dict[str, Array], dict[str, str]]:
    """A gate as the arrays and the metadata of a .safetensors file."""
    metadata = {"gate": gate.kind, "version": _VERSION, "metric": gate.metric}
    return gate.to_arrays(), metadata


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
    kind, version = metadata.get("gate"), metadata.get("version")
    try:
        if kind not in _KINDS or version != _VERSION:
            raise ValueError(f"kind {kind!r}, version {version!r}")
        return _KINDS[kind].from_arrays(arrays, check_metric(metadata.get("metric", "")))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{name} holds no gate that this version can read ({error}): fit it again"
        ) from error


def save_gate(gate: StoredGate, path: str | os.PathLike[str]) -> None:
    """Writes a gate as one .safetensors file, whole or not at all.

    Raises:
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
