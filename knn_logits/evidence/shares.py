"""Finds the documents behind a token from the votes of one step, and a passage of each to show.

Shares are summed over all neighbors before any is left out. So the first document is the one with
the largest share, and all documents together have the whole share of the neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from knn_logits.arrays import Array
from knn_logits.store.datastore import Datastore

Locate: TypeAlias = Callable[[int], tuple[Datastore, int]]
NameOf: TypeAlias = Callable[[Datastore], str]

# So many entries of a document are compared with the text that follows.
_COMPARED = 32
# The most tokens after the token in which a passage and the text are compared.
_LONGEST = 12


@dataclass(frozen=True)
class DocumentVotes:
    """The votes of one document for a token.

    Attributes:
        store: The datastore.
        number: The document's number in it.
        share: Its share in the token's probability.
        columns: int64 [entries], the columns of its entries among the neighbors, the strongest
            first.
        tokens: int64 [entries], the positions of these entries' tokens in `tokens.npy`.
    """

    store: Datastore
    number: int
    share: float
    columns: Array
    tokens: Array


def votes_by_document(ids: Array, shares: Array, locate: Locate) -> list[DocumentVotes]:
    """Sums the votes of one step by document.

    Args:
        ids: int64 [k], the entries of one step's neighbors.
        shares: float64 [k], the share of each in the token's probability.
        locate: Returns the datastore of an entry that was found, and the entry's number there.

    Returns:
        All documents with a share above 0, the largest share first.
    """
    voting = np.flatnonzero(shares > 0.0)
    voting = voting[np.argsort(-shares[voting], kind="stable")]
    stores: dict[int, Datastore] = {}
    places: dict[int, list[tuple[int, int]]] = {}
    for column in voting.tolist():
        store, entry = locate(int(ids[column]))
        stores[id(store)] = store
        places.setdefault(id(store), []).append((column, entry))
    found = []
    for key, store in stores.items():
        columns, entries = np.array(places[key], np.int64).T
        tokens = entries + np.searchsorted(store.contexts.first_entry, entries, side="right")
        numbers = np.searchsorted(store.documents.first, tokens, side="right") - 1
        for number in dict.fromkeys(numbers.tolist()):
            own = numbers == number
            share = float(shares[columns[own]].sum())
            found.append(DocumentVotes(store, number, share, columns[own], tokens[own]))
    return sorted(found, key=lambda one: -one.share)


def passage_of(votes: DocumentVotes, following: Sequence[int]) -> int:
    """Chooses the entry whose passage is shown for a document.

    Args:
        votes: The document's votes.
        following: The tokens that follow in the text.

    Returns:
        The column of the entry whose passage agrees longest with the text that follows. Among
        equals it is the strongest entry.
    """
    wanted = np.asarray(following[:_LONGEST], np.int64)
    best, longest = 0, -1
    for place, token in enumerate(votes.tokens[:_COMPARED].tolist()):
        there = np.asarray(votes.store.tokens[token + 1 : token + 1 + len(wanted)])
        same = there == wanted[: len(there)]
        length = int(same.argmin()) if not same.all() else len(same)
        if length > longest:
            best, longest = place, length
    return int(votes.columns[best])


def passages_of(
    documents: Sequence[DocumentVotes], shares: Array, following: Sequence[int], number: int
) -> list[int]:
    """Chooses the columns whose passages are kept: one for each document, then the strongest."""
    first = [passage_of(one, following) for one in documents[:number]]
    others = [int(column) for one in documents for column in one.columns]
    others = sorted((one for one in others if one not in first), key=lambda one: -shares[one])
    return first + others[: number - len(first)]
