"""The numbering of entries: i is the token i + 1 + (contexts that began before it).

A document is a context, unless all were joined into one; a context's first token is no entry.
"""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Array, Ints


class Contexts:
    """The contexts of documents that begin at `first`, int64: one each, or one for all."""

    def __init__(self, first: Ints, tokens: int, concatenate: bool = False) -> None:
        self.first = first = first[:1] if concatenate else first
        self.length: Ints = np.diff(np.append(first, tokens))
        self.first_entry: Ints = first - np.arange(len(first), dtype=np.int64)
        self.entries = int(tokens - len(first))

    def entries_of(self, first: Ints, length: Ints) -> Ints:
        """The entries of some spans of tokens, int64, ascending as the spans do."""
        tokens = np.concatenate(
            [np.arange(a, a + n, dtype=np.int64) for a, n in zip(first, length, strict=True)]
            or [np.empty(0, np.int64)]
        )
        context = np.searchsorted(self.first, tokens, side="right") - 1
        entries: Ints = tokens - 1 - context
        return entries[tokens != self.first[context]] if len(tokens) else tokens

    def token_of(self, entry: int) -> int:
        """The position of an entry's token in `tokens.npy`."""
        return entry + int(self.first_entry.searchsorted(entry, side="right"))

    def first_states(self, window: int, stride: int) -> Ints:
        """The entries whose keys were computed from a single token, int64, ascending."""
        readable = self.length - 1
        windows = -(-readable // window) if stride == window else np.minimum(readable, 1)
        number = np.arange(windows.sum()) - np.repeat(np.cumsum(windows) - windows, windows)
        entries: Ints = np.repeat(self.first_entry, windows) + number * window
        return entries

    def document_of_entries(self, length: Ints) -> Ints:
        """The number of each entry's document, int64 [entries], for the documents' lengths."""
        documents: Ints = np.delete(np.repeat(np.arange(len(length)), length), self.first)
        return documents


def row_of_token(values: Array, entry: int) -> tuple[int, int]:
    """Which of its token's rows a row is, from 1, and their number; the rows' tokens ascend."""
    first, last = np.searchsorted(values, [values[entry], values[entry] + 1])
    return entry - int(first) + 1, int(last - first)
