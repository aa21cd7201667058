"""Settings that are not given come from a preset: writing, scoring, or the papers' kNN-LM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import Unpack

from knn_logits.errors import ConfigError
from knn_logits.index.opening import Indexes
from knn_logits.mixture.gates.gate import Gate, split_lmbda
from knn_logits.mixture.gates.stored import stored_gate
from knn_logits.mixture.trust import Trust
from knn_logits.search.combined import check_document, check_shares
from knn_logits.search.suffix_index import check_suffixes
from knn_logits.settings.config import PRESETS, KNNConfig, Preset, SearchSettings, check_names
from knn_logits.settings.registry import settings_for, settings_for_trust
from knn_logits.store.datastore import Datastore


class MixtureSettings(SearchSettings, total=False):
    """Keyword arguments for asking a memory. `Memory` explains each of them."""

    preset: Preset | None
    weights: Sequence[float] | None
    k: int | None
    lmbda: float | Gate | None
    temperature: float | None


class MemorySettings(MixtureSettings, total=False):
    """Keyword arguments for opening and asking a memory. `Memory` explains each of them."""

    key: str | None
    device: torch.device | str | None
    threads: int | None
    native_index: bool
    check: bool
    indexes: Indexes | None


def resolve(
    stores: Sequence[Datastore], scoring: bool, settings: MixtureSettings
) -> tuple[KNNConfig, Gate | None]:
    """Resolves the settings to numbers and a gate. It needs no model."""
    check_names("setting", settings, {*MemorySettings.__annotations__, *settings_for()})
    changes: dict[str, Any] = dict(settings)
    check_shares(changes.pop("weights", None), len(stores))
    preset = preset_of(scoring, changes.pop("preset", None))
    without_keys = any(store.manifest.on_demand is not None for store in stores)
    if without_keys and changes.get("retomaton") is None:
        # Pointers need keys, which the first datastore may have and another one not.
        changes["retomaton"] = False
    config, gate = resolve_settings(stores[0], preset, **changes)
    for name in config.exclude:
        check_document(stores, name)
    for store in stores if config.infini_gram else ():
        check_suffixes(store)
    return config, gate


def preset_of(scoring: bool, preset: Preset | None) -> Preset:
    """The preset that is given, or the default of the purpose."""
    return preset or ("scoring" if scoring else "writing")


def resolve_settings(
    store: Datastore,
    preset: Preset,
    *,
    k: int | None = None,
    lmbda: float | Gate | None = None,
    temperature: float | None = None,
    **search: Unpack[SearchSettings],
) -> tuple[KNNConfig, Gate | None]:
    """Returns the settings that hold: those that are given, and the preset's for all others."""
    if preset not in PRESETS:
        raise ConfigError(f"the preset {preset!r} is unknown: use one of {', '.join(PRESETS)}")
    record = store.manifest.writing
    number, gate = split_lmbda(lmbda, store.manifest.metric)
    if preset == "writing" and record is not None and gate is None:
        # Keys that are still on the Hub are many times as large as the index.
        stored = KNNConfig.of(record, pointer_distances=None if store.has_keys else "index")
        config = stored.at_temperature(temperature).with_given(k=k, lmbda=number, **search)
        overrides = {"lmbda": number, **search}
        ended = any(overrides.get(name) is not None for name in settings_for_trust("ends"))
        if record.trust is None or ended:
            return config, None
        # Entries that share the text's end word for word need no pointers and no further bonus.
        alone = config.with_given(retomaton=False).by_nearness()
        return alone, Trust(record.trust, record.lmbda)
    stored = KNNConfig.of(store.manifest.settings)
    if preset == "paper":
        stored = stored.by_nearness()
    elif gate is None and number is None:
        gate = stored_gate(store)
    return stored.with_given(k=k, lmbda=number, temperature=temperature, **search), gate


def generation_settings(store: Datastore) -> dict[str, Any]:
    """Returns arguments for `generate()` of transformers that fit the datastore.

        model.generate(**inputs, logits_processor=[knn], **generation_settings(store))

    They switch off a model's own `no_repeat_ngram_size`, which counts the prompt and so forbids its
    facts. The processor itself ends an answer that loops.

    Args:
        store: The datastore, or the first of several.

    Returns:
        `no_repeat_ngram_size`, if the datastore has settings for writing against loops; otherwise
        an empty dictionary.
    """
    return {} if loop_size(store, "writing") is None else {"no_repeat_ngram_size": 0}


def loop_size(store: Datastore, preset: Preset) -> int | None:
    """The fewest tokens that an answer repeats where it loops; None where a loop is not ended."""
    record = store.manifest.writing
    return record.no_repeat_ngram_size if record is not None and preset == "writing" else None
