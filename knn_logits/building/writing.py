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

from knn_logits.building.calibration import part_of_entries, without_own_part
from knn_logits.config import KNNConfig
from knn_logits.datastore.manifest import WritingRecord
from knn_logits.datastore.store import Datastore
from knn_logits.index.base import Index
from knn_logits.neighbors import Neighbors, padding_distance
from knn_logits.retrieval import Retriever

_K = 64
_LMBDA = 0.7
# Of half of the queries, the nearest neighbor has at least this share of the vote.
_STRONGEST = 0.9
_QUERIES = 512
# Neighbors asked for each that is wanted: many stand in the query's own document.
_OVER_ASK = 4
# An n-gram may not come twice in a text, for the smallest n whose n-grams hardly ever come twice
# in so many tokens of the datastore.
_REPEATED, _REPEATED_WITHIN, _PLACES = 0.02, 256, 64
_NGRAMS = (4, 6, 8, 10, 12, 16, 20, 24, 32)


def choose_writing(
    store: Datastore,
    index: Index,
    *,
    k: int | None = None,
    lmbda: float | None = None,
    temperature: float | None = None,
    seed: int = 0,
) -> WritingRecord | None:
    """The settings for text that goes on from a prompt.

    The temperature follows from how far apart neighbors are: it is the one at which the nearest
    neighbor of a typical query has nine tenths of the vote. A query is a key of the datastore, and
    entries of its own document do not count as its neighbors.

    Args:
        store: The datastore, with its keys; its manifest may be unwritten.
        index: The index over its keys.
        k: A value that is kept; None takes 64, or all entries where they are fewer.
        lmbda: Weight of the neighbors; None takes 0.7.
        temperature: Of the softmax over the neighbors; None chooses it.
        seed: Of the sample.

    Returns:
        The settings; None where all three are given, which then hold for writing as well, or where
        the datastore has too few different keys to choose a temperature on.
    """
    if None not in (k, lmbda, temperature):
        return None
    if temperature is None:
        nearness = _nearness(store, index, seed)
        temperature = _sharp_temperature(nearness) if nearness is not None else None
    if temperature is None:
        return None
    return WritingRecord(
        k=k or _K,
        lmbda=_LMBDA if lmbda is None else lmbda,
        temperature=temperature,
        retomaton=True,
        no_repeat_ngram_size=unrepeated_ngram(store, seed),
    )


def _nearness(store: Datastore, index: Index, seed: int) -> Tensor | None:
    """float32 [queries, k]: larger is nearer, -inf where there is no neighbor."""
    ids = np.random.default_rng(seed).permutation(len(store))[:_QUERIES]
    ids = np.sort(ids)
    retriever = Retriever(store, KNNConfig(k=min(len(store), _OVER_ASK * _K + 1)), index=index)
    found = retriever.search(torch.from_numpy(store.keys(ids).astype(np.float32))).to("cpu")
    far = padding_distance(retriever.metric)
    parts = part_of_entries(store)
    others = without_own_part(found, torch.from_numpy(parts[ids]), parts, far)
    if not _enough(others):
        # All of the text is one part: the other entries are all that there is.
        entries = np.arange(len(store), dtype=np.int32)
        others = without_own_part(found, torch.from_numpy(entries[ids]), entries, far)
    if not _enough(others):
        return None
    distances = others.distances if retriever.metric != "l2" else -others.distances
    return distances.topk(min(_K, distances.shape[1]), dim=-1).values


def _enough(neighbors: Neighbors) -> bool:
    return bool((neighbors.mask.sum(dim=-1) >= 2).float().mean() >= 0.5)


def _sharp_temperature(nearness: Tensor) -> float | None:
    """The temperature at which the nearest neighbor's median share is `_STRONGEST`.

    Args:
        nearness: From `_nearness`.

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
