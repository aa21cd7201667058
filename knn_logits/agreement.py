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
from knn_logits.occurrences import Prefixes

# More shared tokens than these count the same.
LONGEST = 8
# A larger bonus of a shared token changes nothing: it outweighs all distances (LOG.md).
_LARGEST_BONUS = math.log(1e8)

_BACK = np.arange(-LONGEST, 0)


class SharedTokens:
    """Counts the tokens before each entry that are also the last tokens of a text.

    A document's first token is no entry's value, so it is not compared.

    Args:
        values: Integers [entries], the token of each entry.
        goes_on: bool [entries], whether the next entry follows in the same document.
    """

    def __init__(self, values: Array, goes_on: Array) -> None:
        # The token that is n places before an entry stands at the entry's number plus LONGEST - n.
        self._tokens = np.concatenate([np.zeros(LONGEST, values.dtype), values])
        inside = np.append(False, goes_on)[: len(values)]
        reaches = inside.copy()
        self._most = reaches.astype(np.uint8)
        for _ in range(1, LONGEST):
            reaches[1:] = reaches[:-1] & inside[1:]
            self._most += reaches

    def count(self, ids: Array, texts: Prefixes) -> Array:
        """Counts the shared tokens of the entries of each row and the text of the row.

        Args:
            ids: int64 [rows, k], the entries; -1 for padding.
            texts: The text before each of `rows` queries.

        Returns:
            float32 [rows, k], from 0 to 8.
        """
        places = texts.end[:, None] + _BACK
        # No token is negative, so what is before the beginning of a text agrees with nothing.
        tokens = np.append(texts.tokens, -1)
        ends = tokens[np.where(places >= texts.first[:, None], places, -1)]
        found = np.zeros(ids.size, np.float32)
        # Few entries share the last token, and only these are looked at again.
        beside = np.take(self._tokens, ids + (LONGEST - 1), mode="clip")
        shared = np.flatnonzero(beside == ends[:, -1:])
        entries, rows = np.take(ids, shared), shared // ids.shape[1]
        # Padding has no tokens before it, as the first entry has none.
        most = np.take(self._most, entries, mode="clip")
        for back in range(1, LONGEST + 1):
            beside = np.take(self._tokens, entries + (LONGEST - back))
            wanted = np.take(ends, rows * LONGEST + (LONGEST - back))
            same = np.flatnonzero((beside == wanted) & (most >= back))
            shared, entries, rows, most = (
                np.take(one, same) for one in (shared, entries, rows, most)
            )
            if not len(shared):
                break
            found[shared] = back
        return found.reshape(ids.shape)


def at_temperature(weight: float, temperature: float, other: float) -> float:
    """Returns the suffix weight at another temperature that is worth the same distance.

    A token before an entry that is also before the query is worth a difference in distance. The
    same difference counts for more at a sharper temperature, and so must the token.

    Args:
        weight: The weight at `temperature`, above 0.
        temperature: Above 0.
        other: The other temperature, above 0.

    Returns:
        A number from 1e-8 to 1e8.
    """
    bonus = math.log(weight) * (temperature / other)
    return math.exp(max(-_LARGEST_BONUS, min(bonus, _LARGEST_BONUS)))
