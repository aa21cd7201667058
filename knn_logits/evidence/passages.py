"""Finds the documents behind a token, a passage of each to show, and what they say instead.

Shares are summed over all neighbors before any is left out. So the first document is the one with
the largest share, and all documents together have the whole share of the neighbors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.pieces import TextAfter, decoded, parts_of, rest_of_word
from knn_logits.evidence.trace import DocumentShare, Rival
from knn_logits.search.neighbors import Neighbors
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import place_at
from knn_logits.store.learned import row_of_token

Locate: TypeAlias = Callable[[int], tuple[Datastore, int]]
NameOf: TypeAlias = Callable[[Datastore], str]

# So many entries of a document are compared with the text that follows.
_COMPARED = 32
# The most tokens after the token in which a passage and the text are compared.
_LONGEST = 12


@dataclass(frozen=True)
class DocumentVotes:
    """The votes of one document for a token."""

    store: Datastore
    number: int
    share: float
    columns: Array
    tokens: Array  # int64 [entries], the positions of these entries' tokens in `tokens.npy`


def votes_by_document(ids: Array, shares: Array, locate: Locate) -> list[DocumentVotes]:
    """Sums the votes of one step by document."""
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
    """Chooses the entry whose passage is shown for a document."""
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


def by_model(
    token: int, likeliest: tuple[int, float] | None, text_after: TextAfter
) -> Rival | None:
    """Returns the token that the model alone would have chosen, if it is another one."""
    if likeliest is None or likeliest[0] == token:
        return None
    return Rival(text_after(likeliest[0]), math.exp(likeliest[1]))


def by_memory(
    token: int,
    neighbors: Neighbors,
    weights: Tensor,
    tokenizer: Any,
    text_after: TextAfter,
    locate: Locate,
    name_of: NameOf,
) -> Rival | None:
    """Returns the neighbors' likeliest token and the rest of its word, if it is another token."""
    values, votes = neighbors.values[0].cpu(), weights[0].exp().cpu()
    if not len(values):
        return None
    tokens, places = torch.unique(values, return_inverse=True)
    totals = torch.zeros(len(tokens), dtype=votes.dtype).index_add_(0, places, votes)
    best = int(totals.argmax())
    other, p = int(tokens[best]), float(totals[best])
    if other == token or p <= 0.0:
        return None
    shares = torch.where(values == other, votes, 0.0).numpy()
    first = votes_by_document(neighbors.ids[0].cpu().numpy(), shares, locate)[0]
    record, text = first.store.documents[first.number], text_after(other)
    span = slice(int(first.tokens[0]), record.first + record.length)
    return Rival(
        text + rest_of_word(tokenizer, text, first.store.tokens[span]),
        p,
        document_share(first, name_of),
    )


def document_share(votes: DocumentVotes, name_of: NameOf) -> DocumentShare:
    """Names the document that votes belong to."""
    document = votes.store.documents[votes.number]
    name = name_of(votes.store)
    return DocumentShare(name, document.id, document.title, document.uri, votes.share)


_LINE = re.compile(r"line ([0-9]{1,15})")
# U+FFFD stands for a character that is cut before a token.
_WORD = re.compile(r"[^\s\ufffd]")
# The most tokens from the beginning of a paragraph to a word in it.
_MOST_TOKENS = 4096


def where(store: Datastore, entry: int, tokenizer: Any) -> tuple[str | None, str | None]:
    """Returns the title and the uri of an entry's document, with the place of the entry."""
    if store.manifest.learned is not None:
        number, rows = row_of_token(store.values.numpy(), entry)
        return f"learned row {number} of {rows} for this token", None
    position = store.contexts.token_of(entry)
    record = store.documents[store.documents.at_token(position)]
    document = record.shown
    place = place_at(record.metadata, position - record.first)
    if place is None:
        return document.title, document.uri
    name, line = place.name, _LINE.fullmatch(place.name)
    start = record.first + place.start
    if line and position - start <= _MOST_TOKENS:
        # The place is a paragraph's first line. The text from there on shows how many lines follow,
        # unless the tokenizer drops line ends.
        ids = store.tokens[start : position + 1].tolist()
        between, token = parts_of(tokenizer, ids, [len(ids) - 1])
        after = between.count("\n") + _breaks(token)
        if place.start:
            # What the place's first token has before its last word belongs to the lines before.
            after -= decoded(tokenizer, ids[:1]).rstrip().count("\n")
        name = f"line {int(line[1]) + after}"
    uri = document.uri
    if uri is not None and place.fragment and "#" not in uri:
        uri = f"{uri}#{place.fragment}"
    return f"{document.title or document.id}, {name}", uri


def _breaks(token: str) -> int:
    """Counts the line breaks of a token before its word; 0 if it has no word."""
    word = _WORD.search(token)
    return token.count("\n", 0, word.start()) if word else 0
