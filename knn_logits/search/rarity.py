"""How rare the words are that the end of a text shares with a corpus, in nats.

The tokens of a word count once. Words copied from the text before count nothing, since they show no
passage that is followed; neither do signs and white space.
"""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Array

# What a token is in its text: it begins with white space, ends with it, or has a letter or digit.
BEGINS, ENDS, COUNTS = 1, 2, 4


def token_rarities(counts: list[Array]) -> Array:
    """-ln of each token's frequency, float32 [largest token + 1], from counts of each text."""
    total = np.zeros(max(1, *map(len, counts)), np.int64)
    for part in counts:
        total[: len(part)] += part
    rarity: Array = -np.log(np.maximum(total, 1) / max(1, total.sum())).astype(np.float32)
    return rarity


def rarity_of_end(text: Array, length: int, rarity: Array, words: Array | None) -> float:
    """Rarity of the last `length` tokens of a text; without `words` each token is a word."""
    end = text[len(text) - length :]
    values = rarity[end]
    begins = np.ones(length, bool)
    if words is not None:
        kinds = np.full(len(rarity), BEGINS | ENDS | COUNTS, np.uint8)
        kinds[: len(words)] = words[: len(rarity)]
        of_end = kinds[end]
        values = np.where(of_end & COUNTS, values, 0.0)
        begins[1:] = ((of_end[1:] & BEGINS) | (of_end[:-1] & ENDS)) > 0
    values = np.where(_copied(text)[len(text) - length :], 0.0, values)
    first = np.flatnonzero(begins)
    return float(np.maximum.reduceat(values, first).sum()) if length else 0.0


def _copied(text: Array) -> Array:
    """Whether each token stands in the text before with one of its neighbors, bool [tokens]."""
    pairs = (text[:-1].astype(np.int64) << 32) | (text[1:].astype(np.int64) & 0xFFFFFFFF)
    _, first, which = np.unique(pairs, return_index=True, return_inverse=True)
    repeated = (first[which] < np.arange(len(pairs))) & (text[:-1] >= 0) & (text[1:] >= 0)
    copied: Array = np.append(repeated, False) | np.append(False, repeated)
    return copied
