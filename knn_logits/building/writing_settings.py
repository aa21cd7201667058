"""Chooses the settings for writing text with a datastore.

The settings with the highest likelihood let a thousand neighbors vote with almost equal weights,
which writes blank lines and loops. So text is written with a sharp vote that follows pointers: once
a passage has given a token, it goes on giving tokens. LOG.md has the measurements.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from knn_logits.building.nearness import Nearness
from knn_logits.building.planning import FixedSettings
from knn_logits.engine.compatibility import CANARY_KEYS
from knn_logits.index.opening import training_sample
from knn_logits.mixture.distribution import equivalent_temperature
from knn_logits.search.shared_tokens import at_temperature
from knn_logits.settings.config import Metric
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import SettingsRecord, WritingRecord

_K = 64
_LMBDA = 0.7
# For half of the queries, the nearest neighbor has at least this share of the vote.
_STRONGEST = 0.9
# A written text that repeats n tokens at once loops. n is the least for which n-grams hardly ever
# repeat within so many tokens of the datastore.
_REPEATED, _REPEATED_WITHIN, _PLACES = 0.02, 256, 64
# The mean square of a key is taken over so many keys.
_QUERIES = 256
_NGRAMS = (4, 6, 8, 10, 12, 16, 20, 24, 32)


def choose_writing(
    store: Datastore, nearness: Nearness | None, fixed: FixedSettings, *, seed: int = 0
) -> WritingRecord | None:
    """Chooses the settings for text that continues a prompt.

    The temperature gives the nearest neighbor of a typical query nine tenths of the vote. None is
    returned where all settings are fixed, since these then hold for writing as well, and where the
    datastore has too few different keys to choose a temperature.
    """
    temperature = fixed.temperature
    if temperature is None and nearness is not None:
        temperature = sharp_temperature(nearness.nearest)
    if temperature is None or fixed.complete:
        return None
    return WritingRecord(
        k=fixed.k or _K,
        lmbda=_LMBDA if fixed.lmbda is None else fixed.lmbda,
        temperature=temperature,
        retomaton=True,
        no_repeat_ngram_size=unrepeated_ngram(store, seed),
    )


def like_temperature(store: Datastore, temperature: float, metric: Metric) -> float:
    """Converts a temperature that was chosen for a metric to the datastore's metric."""
    if metric == store.manifest.metric:
        return temperature
    keys = training_sample(store, _QUERIES, seed=0) if store.has_keys else store.checks[CANARY_KEYS]
    mean_square = max(float(np.square(keys).sum(axis=-1).mean()), 1e-12)
    # The number is rounded, so that going to another metric and back changes nothing.
    like = equivalent_temperature(temperature, metric, store.manifest.metric, mean_square)
    return float(f"{like:.8g}")


def with_suffixes(writing: WritingRecord | None, scoring: SettingsRecord) -> WritingRecord | None:
    """Gives shared tokens the worth for writing that they have for scoring."""
    if writing is None:
        return None
    weight = at_temperature(scoring.suffix_weight, scoring.temperature, writing.temperature)
    return writing.model_copy(update={"suffix_weight": float(f"{weight:.4g}")})


def sharp_temperature(nearness: Tensor) -> float | None:
    """Finds the temperature at which the nearest neighbor's median share is `_STRONGEST`.

    The nearness is that of `Nearness.nearest`. None stands for neighbors that are equally near.
    """
    rows = nearness[nearness.isfinite().sum(dim=-1) >= 2].double()
    below = rows[:, :1] - rows
    scale = float(below[below.isfinite()].mean())
    if not np.isfinite(scale) or scale <= 0.0:
        return None
    low, high = scale * 1e-5, scale * 1e3
    for _ in range(60):
        middle = (low * high) ** 0.5
        strongest = torch.softmax(-below / middle, dim=-1)[:, 0].median()
        low, high = (middle, high) if float(strongest) > _STRONGEST else (low, middle)
    return float(f"{low:.4g}")


def unrepeated_ngram(store: Datastore, seed: int = 0) -> int | None:
    """Finds the smallest n, from 4 to 32, for which n-grams hardly ever repeat within a page.

    None stands for a text that repeats longer n-grams.
    """
    tokens, size = store.tokens, _REPEATED_WITHIN
    if len(tokens) < 2 * size:
        return 8
    starts = np.random.default_rng(seed).integers(0, len(tokens) - size, _PLACES)
    pages = [np.asarray(tokens[start : start + size]).tolist() for start in starts.tolist()]
    for n in _NGRAMS:
        count = size - n + 1
        distinct = [len({tuple(page[at : at + n]) for at in range(count)}) for page in pages]
        if 1.0 - sum(distinct) / (count * len(pages)) <= _REPEATED:
            return n
    return None
