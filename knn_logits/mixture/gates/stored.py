"""Gates as plain arrays, as a datastore has them."""

from __future__ import annotations

from collections.abc import Mapping

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError
from knn_logits.metrics import check_metric
from knn_logits.mixture.gates.adaptive import AdaptiveGate
from knn_logits.mixture.gates.gate import FittedGate
from knn_logits.mixture.gates.meta_k import MetaKGate
from knn_logits.store.datastore import Datastore

_VERSION = "1"
# A new gate is a line here, and a file.
GATES: dict[str, type[FittedGate]] = {gate.kind: gate for gate in (AdaptiveGate, MetaKGate)}


def gate_arrays(gate: FittedGate) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns a gate as the arrays and the metadata of a .safetensors file."""
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
