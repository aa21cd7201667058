"""Decides which settings hold. A setting that is not given is taken from the datastore.

A datastore has two sets of settings. Those for scoring were chosen by likelihood, and hold where
text is scored or explained. Those for writing hold where text is written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from typing_extensions import Unpack

from knn_logits.agreement import at_temperature
from knn_logits.config import KNNConfig, SearchSettings
from knn_logits.datastore.store import Datastore
from knn_logits.gating.gate import Gate
from knn_logits.gating.stored import lmbda_or_gate


def scoring_settings(
    store: Datastore,
    *,
    k: int | None = None,
    lmbda: float | Gate | None = None,
    temperature: float | None = None,
    **search: Unpack[SearchSettings],
) -> tuple[KNNConfig, Gate | None]:
    """Returns the settings for scoring a text.

    Args:
        store: The datastore, or the first of several.
        k: Neighbors of each query; None takes the datastore's setting.
        lmbda: Weight of the neighbors; None takes the datastore's gate, or else its number.
        temperature: Temperature of the softmax over the neighbors; None takes the datastore's
            setting.
        search: How neighbors are found, as `KNNConfig` explains. The datastore's weight of
            suffixes holds unless k, λ and temperature are all given, which ask for the papers'
            kNN-LM.

    Returns:
        The settings, and the gate that decides on λ in place of their number, if there is one.

    Raises:
        ConfigError: when a setting is out of its range, or the gate was fitted for another metric.
        DamagedError: when the datastore's gate cannot be read.
    """
    number, gate = lmbda_or_gate(lmbda, store)
    settings = store.manifest.settings
    own = KNNConfig(settings.k, settings.lmbda, settings.temperature)
    if None in (k, number, temperature):
        own = replace(own, suffix_weight=settings.suffix_weight)
    return own.with_given(k=k, lmbda=number, temperature=temperature, **search), gate


def writing_settings(
    store: Datastore,
    *,
    k: int | None = None,
    lmbda: float | Gate | None = None,
    temperature: float | None = None,
    **search: Unpack[SearchSettings],
) -> tuple[KNNConfig, Gate | None]:
    """Returns the settings for writing text. Arguments and errors are those of `scoring_settings`.

    If a user gives k, λ and temperature, or a gate, the user has chosen a kNN-LM. Then none of the
    datastore's settings for writing is used.
    """
    record = store.manifest.writing
    chosen = None not in (k, lmbda, temperature)
    if record is None or chosen or isinstance(lmbda, Gate):
        return scoring_settings(store, k=k, lmbda=lmbda, temperature=temperature, **search)
    own = KNNConfig(
        record.k,
        record.lmbda,
        record.temperature,
        retomaton=record.retomaton,
        min_knns=record.min_knns,
        suffix_weight=record.suffix_weight,
        # Keys that are still on the Hub are many times as large as the index.
        pointer_distances="keys" if store.has_keys else "index",
    )
    config = own.with_given(k=k, lmbda=lmbda, temperature=temperature, **search)
    if search.get("suffix_weight") is None and config.temperature != own.temperature:
        # A shared token keeps its worth in distance.
        weight = at_temperature(own.suffix_weight, own.temperature, config.temperature)
        config = replace(config, suffix_weight=weight)
    return config, None


def generation_settings(store: Datastore) -> dict[str, Any]:
    """Returns arguments for `generate()` of transformers that keep text from looping.

        model.generate(**inputs, logits_processor=[knn], **generation_settings(store))

    Args:
        store: The datastore, or the first of several.

    Returns:
        `no_repeat_ngram_size`, if the datastore has such a setting for writing; otherwise an empty
        dictionary.
    """
    record = store.manifest.writing
    if record is None or record.no_repeat_ngram_size is None:
        return {}
    return {"no_repeat_ngram_size": record.no_repeat_ngram_size}
