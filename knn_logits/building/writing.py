"""Choosing the settings that a datastore's own text is written with.

The likeliest settings do not write the best text. They let a thousand neighbors vote almost alike,
which predicts well and, when the likeliest token is taken each time, writes blank lines and loops.
Text is written with a sharp vote instead, along pointers: once a passage has given a token, the
passage goes on, and the index is searched again only where it ends or another token was chosen.
LOG.md has the measurements.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from knn_logits.building.nearness import Nearness
from knn_logits.datastore.manifest import WritingRecord
from knn_logits.datastore.store import Datastore

_K = 64
_LMBDA = 0.7
# Of half of the queries, the nearest neighbor has at least this share of the vote.
_STRONGEST = 0.9
# An n-gram may not come twice in a text, for the smallest n whose n-grams hardly ever come twice
# in so many tokens of the datastore.
_REPEATED, _REPEATED_WITHIN, _PLACES = 0.02, 256, 64
_NGRAMS = (4, 6, 8, 10, 12, 16, 20, 24, 32)


def choose_writing(
    store: Datastore,
    nearness: Nearness | None,
    *,
    k: int | None = None,
    lmbda: float | None = None,
    temperature: float | None = None,
    seed: int = 0,
) -> WritingRecord | None:
    """The settings for text that goes on from a prompt.

    The temperature follows from how far apart neighbors are: it is the one at which the nearest
    neighbor of a typical query has nine tenths of the vote.

    Args:
        store: The datastore, with its keys; its manifest may be unwritten.
        nearness: From `nearness_of`; None where the datastore is too small for it.
        k: A value that is kept; None takes 64, or all entries where they are fewer.
        lmbda: Weight of the neighbors; None takes 0.7.
        temperature: Temperature of the softmax over the neighbors; None chooses it.
        seed: Seed of the sample.

    Returns:
        The settings; None where all three are given, which then hold for writing as well, or where
        the datastore has too few different keys to choose a temperature on.
    """
    if None not in (k, lmbda, temperature):
        return None
    if temperature is None:
        temperature = _sharp_temperature(nearness.distances) if nearness is not None else None
    if temperature is None:
        return None
    return WritingRecord(
        k=k or _K,
        lmbda=_LMBDA if lmbda is None else lmbda,
        temperature=temperature,
        retomaton=True,
        no_repeat_ngram_size=unrepeated_ngram(store, seed),
    )


def _sharp_temperature(nearness: Tensor) -> float | None:
    """The temperature at which the nearest neighbor's median share is `_STRONGEST`.

    Args:
        nearness: float32 [queries, k], see `Nearness.distances`.

    Returns:
        The temperature, above 0; None where neighbors are all equally near.
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
    """The smallest n of which n-grams hardly ever come twice within a page of a datastore's text.

    Returns:
        Between 4 and 32; None where the datastore's text repeats itself more.
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
