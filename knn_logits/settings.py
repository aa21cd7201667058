"""Which settings hold: those that are given, and a datastore's own for the rest.

A datastore has two sets of its own. Settings for scoring were chosen by likelihood, and serve where
text is scored or explained. Settings for writing serve where text is written.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

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
    """The settings for scoring a text.

    Args:
        store: The datastore, the first of several.
        k: Neighbors a query; None takes the datastore's, as for the next two.
        lmbda: Weight of the neighbors; None takes the datastore's gate if it has one.
        temperature: Temperature of the softmax over the neighbors.
        search: How neighbors are found; see `KNNConfig`.

    Returns:
        The settings, and the gate that decides on λ in place of their number, if any.

    Raises:
        ConfigError: when a setting is out of its range, or the gate was fitted for another metric.
        DamagedError: when the datastore's gate cannot be read.
    """
    number, gate = lmbda_or_gate(lmbda, store)
    settings = store.manifest.settings
    own = KNNConfig(settings.k, settings.lmbda, settings.temperature)
    return own.with_given(k=k, lmbda=number, temperature=temperature, **search), gate


def writing_settings(
    store: Datastore,
    *,
    k: int | None = None,
    lmbda: float | Gate | None = None,
    temperature: float | None = None,
    **search: Unpack[SearchSettings],
) -> tuple[KNNConfig, Gate | None]:
    """The settings for text that is written; arguments and errors as for `scoring_settings`.

    Who gives k, λ and temperature, or a gate, has chosen a kNN-LM: nothing of the datastore's
    settings for writing is mixed with that.
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
        # Keys that are still on the Hub are many times the index's size.
        pointer_distances="keys" if store.has_keys else "index",
    )
    return own.with_given(k=k, lmbda=lmbda, temperature=temperature, **search), None


def generation_settings(store: Datastore) -> dict[str, Any]:
    """What `generate()` of transformers should be called with, so that text does not loop.

        model.generate(**inputs, logits_processor=[knn], **generation_settings(store))

    Args:
        store: The datastore, the first of several.

    Returns:
        `no_repeat_ngram_size`, where the datastore has one for writing; else nothing.
    """
    record = store.manifest.writing
    if record is None or record.no_repeat_ngram_size is None:
        return {}
    return {"no_repeat_ngram_size": record.no_repeat_ngram_size}
