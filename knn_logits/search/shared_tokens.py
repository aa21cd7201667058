"""Counts how many tokens before an entry are the same as before the query.

The state says what the model expects. It does not say which words stand before: of the 64 nearest
entries of a held-out text, a fifth differ in the very last token, and six in ten in the token
before it. An entry that shares more tokens with the end of the text is right far more often
(LOG.md), so `suffix_weight` lets it count more.

This module has only arrays. It does not know of models or files.
"""

from __future__ import annotations

import math

import numpy as np

from knn_logits.arrays import Array
from knn_logits.search.occurrences import Prefixes

# More shared tokens than these count the same.
LONGEST = 8
# A larger bonus of a shared token changes nothing: it outweighs all distances (LOG.md).
_LARGEST_BONUS = math.log(1e8)

_BACK = np.arange(-LONGEST, 0)


class SharedTokens:
    """Counts the tokens before each entry that are also the last tokens of a text.

    Args:
        tokens: Integers [tokens], the tokens of all documents.
        documents: int64 [documents], the first token of each document, ascending from 0.
        contexts: int64 [contexts], the first token of each context, which is no entry.
    """

    def __init__(self, tokens: Array, documents: Array, contexts: Array) -> None:
        before = np.full(len(tokens), LONGEST, np.uint8)
        # A document may end before the next number of tokens, so the nearest beginning comes last.
        for number in reversed(range(LONGEST)):
            before[documents[documents < len(tokens) - number] + number] = number
        # How many tokens of its document stand before each entry, and the last of them. The tokens
        # before that are the last ones before earlier entries.
        self._most = np.delete(before, contexts)
        self._last = np.delete(np.asarray(tokens), contexts[1:] - 1)[: len(self._most)]

    def count(self, ids: Array, texts: Prefixes) -> Array:
        """Counts the shared tokens of the entries of each row and the text of the row.

        Args:
            ids: int64 [rows, k], the entries; -1 for padding.

        Returns:
            float32 [rows, k], from 0 to 8.
        """
        places = texts.end[:, None] + _BACK
        # No token is negative, so what is before the beginning of a text agrees with nothing.
        tokens = np.append(texts.tokens, -1)
        ends = tokens[np.where(places >= texts.first[:, None], places, -1)]
        counts = np.zeros(ids.size, np.float32)
        # Few entries share the last token, and only these are looked at again.
        preceding = np.take(self._last, ids, mode="clip")
        shared = np.flatnonzero((preceding == ends[:, -1:]) & (ids >= 0))
        entries, rows = np.take(ids, shared), shared // ids.shape[1]
        most = np.take(self._most, entries)
        for back in range(1, LONGEST + 1):
            preceding = np.take(self._last, entries - (back - 1), mode="clip")
            expected = np.take(ends, rows * LONGEST + (LONGEST - back))
            same = np.flatnonzero((preceding == expected) & (most >= back))
            shared, entries, rows, most = (
                np.take(array, same) for array in (shared, entries, rows, most)
            )
            if not len(shared):
                break
            counts[shared] = back
        return counts.reshape(ids.shape)


def at_temperature(weight: float, temperature: float, other: float) -> float:
    """Returns the suffix weight at another temperature that is worth the same distance.

    A token before an entry that is also before the query is worth a difference in distance. The
    same difference counts for more at a sharper temperature, and so must the token.
    """
    bonus = math.log(weight) * (temperature / other)
    return math.exp(max(-_LARGEST_BONUS, min(bonus, _LARGEST_BONUS)))
