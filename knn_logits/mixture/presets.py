"""Settings that are not given come from the datastore, with its gate, or from the papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import Unpack

from knn_logits.errors import ConfigError, DamagedError
from knn_logits.index.opening import Indexes
from knn_logits.mixture.gates.adaptive import AdaptiveGate
from knn_logits.mixture.gates.gate import FittedGate, Gate
from knn_logits.mixture.gates.meta_k import MetaKGate
from knn_logits.search.combined import check_document
from knn_logits.settings.config import PRESETS, KNNConfig, Preset, SearchSettings, check_names
from knn_logits.settings.registry import settings_for
from knn_logits.store.datastore import Datastore
from knn_logits.store.manifest import needs_text

# A new gate is a line here, and a file.
GATES: dict[str, type[FittedGate]] = {gate.kind: gate for gate in (AdaptiveGate, MetaKGate)}


class MixtureSettings(SearchSettings, total=False):
    """Keyword arguments for asking a memory. `Memory` explains each of them."""

    preset: Preset | None
    k: int | None
    lmbda: float | Gate | None
    temperature: float | None


class MemorySettings(MixtureSettings, total=False):
    """Keyword arguments for opening and asking a memory. `Memory` explains each of them."""

    device: torch.device | str | None
    threads: int | None
    check: bool
    indexes: Indexes | None


def resolve(
    stores: Sequence[Datastore], settings: MixtureSettings
) -> list[tuple[KNNConfig, Gate | None]]:
    """Resolves the settings to numbers and a gate. It needs no model.

    Returns:
        The numbers and the adaptive gate of each datastore; a datastore without a gate takes the
        first one of the others. If no adaptive gate decides on λ, one pair for all datastores.
    """
    check_names("setting", settings, {*MemorySettings.__annotations__, *settings_for()})
    changes: dict[str, Any] = dict(settings)
    without_keys = any(store.manifest.on_demand is not None for store in stores)
    if without_keys and changes.get("retomaton") is None:
        # Pointers need keys, which some of the datastores do not store.
        changes["retomaton"] = False
    rules = [resolve_settings(store, **changes) for store in stores]
    config = rules[0][0]
    for name in config.exclude:
        check_document(stores, name)
    for store in stores if config.infini_gram else ():
        needs_text(store.manifest, store.folder, "the ∞-gram")
    first = next((gate for _, gate in rules if gate is not None), None)
    if not all(isinstance(gate or first, AdaptiveGate) for _, gate in rules):
        return rules[:1]
    return [(own, gate or first) for own, gate in rules]


def resolve_settings(
    store: Datastore,
    *,
    preset: Preset | None = None,
    k: int | None = None,
    lmbda: float | Gate | None = None,
    temperature: float | None = None,
    **search: Unpack[SearchSettings],
) -> tuple[KNNConfig, Gate | None]:
    """Returns the settings that hold: those that are given, and the datastore's for all others.

    The preset "paper" is kNN-LM as in Khandelwal et al. (2020): λ is the datastore's constant, and
    tokens that an entry shares with the text do not count.
    """
    if preset not in (None, *PRESETS):
        raise ConfigError(f"the preset {preset!r} is unknown: use one of {', '.join(PRESETS)}")
    given: Any = lmbda
    if isinstance(given, type):
        raise ConfigError(f"lmbda is the class {given.__name__}: use an object, {given.__name__}()")
    number, gate = (None, lmbda) if isinstance(lmbda, Gate) else (lmbda, None)
    metric = store.manifest.metric
    if gate is not None and getattr(gate, "metric", metric) not in (None, metric):
        raise ConfigError(
            f"the gate was fitted for the metric {getattr(gate, 'metric', None)}, but the "
            f"datastore has {metric}: fit a gate on this datastore, or set lmbda to a number"
        )
    stored = KNNConfig.of(store.manifest.settings)
    if preset == "paper":
        stored = stored.with_given(suffix_weight=1.0)
    elif gate is None and number is None:
        gate = stored_gate(store)
    return stored.with_given(k=k, lmbda=number, temperature=temperature, **search), gate


def stored_gate(store: Datastore) -> FittedGate | None:
    """Reads the gate of a datastore; None if the datastore has no gate."""
    saved = store.gate_arrays
    if saved is None:
        return None
    arrays, about = saved
    try:
        if about["metric"] != store.manifest.metric:
            raise ValueError(f"fitted for the metric {about['metric']}")
        return GATES[about["gate"]].from_arrays(arrays, store.manifest.metric)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"the gate of {store.folder} cannot be used ({error}): fit another with `knn-logits "
            "tune --gate meta-k --write`, or rebuild the datastore"
        ) from error


def generation_settings(store: Datastore) -> dict[str, Any]:
    """Returns arguments for `generate()` of transformers that fit the datastore.

        model.generate(**inputs, logits_processor=[knn], **generation_settings(store))

    They switch off a model's own `no_repeat_ngram_size`, which counts the prompt and so forbids its
    facts. The processor itself ends an answer that loops.

    Args:
        store: The datastore, or the first of several.

    Returns:
        `no_repeat_ngram_size`, if the datastore has such a size itself; otherwise an empty
            dictionary.
    """
    return (
        {} if store.manifest.settings.no_repeat_ngram_size is None else {"no_repeat_ngram_size": 0}
    )
