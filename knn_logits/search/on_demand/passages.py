"""Cuts the text of a datastore into passages. Numbers only: it knows no model and no search."""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Array
from knn_logits.engine.windows import TextWindow
from knn_logits.store.entries import Contexts


class Passages:
    """The passages of a text: so many entries in a row, none of which crosses a context's edge."""

    def __init__(self, contexts: Contexts, size: int, before: int) -> None:
        self._size, self._before = size, before
        self._first_token, self._first_entry = contexts.first, contexts.first_entry
        self._entries = contexts.length - 1
        counts = -(-self._entries // size)
        self._first = np.concatenate([[0], np.cumsum(counts)])

    def __len__(self) -> int:
        """Number of passages."""
        return int(self._first[-1])

    def of_entries(self, entries: Array) -> Array:
        """Returns the passage of each entry, int64 [entries]."""
        context = np.searchsorted(self._first_entry, entries, side="right") - 1
        passages: Array = (
            self._first[context] + (entries - self._first_entry[context]) // self._size
        )
        return passages

    def span(self, passage: int) -> tuple[int, int]:
        """Returns the first entry of a passage, and the one after its last."""
        context, number = self._place(passage)
        first = int(self._first_entry[context]) + number * self._size
        return first, first + min(self._size, int(self._entries[context]) - number * self._size)

    def window(self, passage: int) -> TextWindow:
        """Returns the forward pass that gives the keys of a passage."""
        context, number = self._place(passage)
        first, last = self.span(passage)
        skip = min(self._before, number * self._size)
        start = int(self._first_token[context]) + number * self._size - skip
        return TextWindow(start, skip + last - first, skip, first, context)

    def _place(self, passage: int) -> tuple[int, int]:
        context = int(np.searchsorted(self._first, passage, side="right")) - 1
        return context, passage - int(self._first[context])
