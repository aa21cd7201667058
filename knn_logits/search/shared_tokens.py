"""Counts how many tokens before an entry are the same as before the query."""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Array
from knn_logits.search.occurrences import Prefixes

# More shared tokens than these count the same.
LONGEST = 8
_BACK = np.arange(-LONGEST, 0)


class SharedTokens:
    """Counts for `documents` and `contexts`, the first tokens of each, int64, ascending."""

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
        """Shared tokens of entries `ids` and each row's text, float32 [rows, k], 0 to 8."""
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
