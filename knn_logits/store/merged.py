"""Entries that stand for others: of several of one token in one document the index holds one.

He, Neubig, Berg-Kirkpatrick (2021), "Efficient Nearest Neighbor Language Models", section 4.2,
merge entries over the whole datastore. Here only entries of one document are merged, so that the
shares of documents stay true, and so that a document can be removed or left out with all of its
entries.
"""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Array, Ints
from knn_logits.store.documents import Contexts


def document_of_entries(length: Ints, contexts: Contexts) -> Ints:
    """The number of each entry's document, int64 [entries].

    Args:
        length: int64 [documents], the number of tokens of each document.
        contexts: The contexts of the text.
    """
    found: Ints = np.delete(np.repeat(np.arange(len(length)), length), contexts.first)
    return found


def away(into: Array) -> Ints:
    """The entries that another one stands for, int64, ascending.

    Args:
        into: int32 [entries], the entry that stands for each entry, which may be itself.
    """
    return np.flatnonzero(np.asarray(into) != np.arange(len(into)))


def log_counts(into: Array) -> Array:
    """The logarithm of the number of entries that each entry stands for, float32 [entries].

    An entry that another one stands for has 0: where it is met all the same, as a pointer of
    RetoMaton, it counts as one.
    """
    counts = np.bincount(np.asarray(into), minlength=len(into))
    found: Array = np.log(np.maximum(counts, 1)).astype(np.float32)
    return found


def problem_of(into: Array, values: Array, documents: Ints) -> str | None:
    """Says what is wrong with the entries that stand for others; None if nothing is.

    Args:
        into: int32 [entries], each in [0, entries).
        values: [entries], the token of each entry.
        documents: int64 [entries], the number of each entry's document.
    """
    own = np.asarray(into)
    if not np.array_equal(own[own], own):
        return "an entry stands for others although another one stands for it"
    if not np.array_equal(np.asarray(values)[own], np.asarray(values)):
        return "an entry stands for one of another token"
    if not np.array_equal(documents[own], documents):
        return "an entry stands for one of another document"
    return None
