"""Measures how much of a corpus stands in it more than once, word for word."""

from __future__ import annotations

import logging

import numpy as np

from knn_logits.arrays import Array
from knn_logits.store.datastore import Datastore

logger = logging.getLogger(__name__)

# A span is so many tokens, a power of two. Hardly any text repeats so many by chance.
_SPAN = 32
_SPANS, _TOKENS_AT_ONCE = 512, 1 << 20
_MOST = 0.5
# Any odd number with large powers serves for a hash of 64 bits.
_BASE = 0x9E3779B97F4A7C15


def repeated_share(tokens: Array, seed: int = 0) -> float:
    """Measures the share of spans of 32 tokens that stand more than once in a text, on a sample.

    Spans that overlap are no copies of each other, as in a line of forty dashes.
    """
    if len(tokens) < 2 * _SPAN:
        return 0.0
    starts = np.random.default_rng(seed).integers(0, len(tokens) - _SPAN + 1, _SPANS)
    drawn = np.array([_hashes(tokens[start : start + _SPAN])[0] for start in starts.tolist()])
    distinct = np.unique(drawn)
    earliest, latest = np.full(len(distinct), len(tokens)), np.full(len(distinct), -1)
    for first in range(0, len(tokens) - _SPAN + 1, _TOKENS_AT_ONCE):
        hashes = _hashes(tokens[first : first + _TOKENS_AT_ONCE + _SPAN - 1])
        places = np.searchsorted(distinct, hashes).clip(max=len(distinct) - 1)
        (hits,) = np.nonzero(distinct[places] == hashes)
        np.minimum.at(earliest, places[hits], first + hits)
        np.maximum.at(latest, places[hits], first + hits)
    return float(np.mean((latest - earliest >= _SPAN)[np.searchsorted(distinct, drawn)]))


def _hashes(tokens: Array) -> Array:
    """Computes a number for each span, uint64 [tokens - 31], from those of its two halves."""
    numbers: Array = np.asarray(tokens).astype(np.uint64) + np.uint64(1)
    width = 1
    while width < _SPAN:
        factor = np.uint64(pow(_BASE, width, 1 << 64))
        numbers = numbers[:-width] * factor + numbers[width:]
        width *= 2
    return numbers


def warn_of_repeats(store: Datastore, seed: int = 0) -> None:
    """Says that a datastore's settings will be chosen on text that is mostly copies.

    Held-out text then stands elsewhere in the corpus, and the likeliest settings follow it blindly.
    """
    share = repeated_share(store.tokens, seed)
    if share > _MOST:
        logger.warning(
            "%.0f%% of the text stands more than once in the corpus, word for word. The settings "
            "that are chosen on it fit copies, and may not fit other text: leave the copies out, "
            "or choose settings on other text with `knn-logits tune MODEL STORE TEXT --write`",
            100.0 * share,
        )
