"""What a datastore says of the tokens of a corpus, for a memory that learns from it.

An entry's own document would answer with the very words that follow. So neighbors from the document
that is read are left out, as where settings are calibrated, and so are those from documents that
are held out. The others are weighed as the datastore's settings for scoring say, by distance and by
the tokens that they share with the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array, Ints
from knn_logits.building.adding import contents_of
from knn_logits.building.calibration import (
    OVER_ASK,
    entry_of_places,
    part_of_entries,
    without_own_part,
)
from knn_logits.mixture.weights import Weighing
from knn_logits.progress import Progress
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.retriever import Retriever
from knn_logits.search.shared_tokens import LONGEST
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore

# Neighbors of a token, and the likeliest tokens that are kept of their vote.
_K, _LIKELIEST = 256, 16
_QUERIES_AT_ONCE = 128
# The share of the token that follows in the text; the neighbors have the rest. Memory Decoder adds
# both losses (2508.09874).
_OWN = 0.5


@dataclass(frozen=True)
class Shares:
    """What is to be learnt at some entries.

    Attributes:
        tokens: int32 [entries, likeliest], numbers among the memory's tokens.
        shares: float32 [entries, likeliest], which sum to 1.
    """

    tokens: Array
    shares: Array


def shares_by(
    teacher: Datastore,
    corpus: Datastore,
    entries: Ints,
    held: Array,
    numbers: Ints,
    progress: Progress,
) -> Shares:
    """Asks a datastore about entries of a corpus.

    Args:
        teacher: The datastore.
        corpus: A datastore of the corpus, with its keys. It may be the same.
        entries: int64 [entries], the corpus's entries to learn from.
        held: bool [entries of the corpus], those that are held out. The datastore says nothing of
            the parts of the text that they stand in, or the rows would learn what chooses them.
        numbers: int64 [vocabulary], the number of each token among the memory's; -1 for none.
        progress: Told how many entries are done.
    """
    settings = teacher.manifest.settings
    k = min(settings.k, _K)
    config = KNNConfig(
        min(len(teacher), OVER_ASK * k),
        temperature=settings.temperature,
        suffix_weight=settings.suffix_weight,
    )
    retriever, weighing = Retriever(teacher, config), Weighing.of(config)
    parts = part_of_entries(teacher)
    own = _own_parts(teacher, corpus, parts)
    away = np.isin(parts, own[held & (own >= 0)]).astype(np.int32)
    number_of = torch.from_numpy(numbers)
    targets = number_of[corpus.values[torch.from_numpy(entries)].long()]
    count = min(_LIKELIEST, int(numbers.max()) + 1)
    tokens = np.empty((len(entries), count + 1), np.int32)
    shares = np.empty((len(entries), count + 1), np.float32)
    for first in range(0, len(entries), _QUERIES_AT_ONCE):
        progress("distributions", first, len(entries))
        some = slice(first, first + _QUERIES_AT_ONCE)
        ids = entries[some]
        states = torch.from_numpy(corpus.keys(ids).astype(np.float32))
        found = without_own_part(
            retriever.search(states, _before(corpus, ids)).to("cpu"),
            torch.from_numpy(own[ids]),
            parts,
        )
        found = without_own_part(found, torch.ones(len(ids), dtype=torch.int32), away)
        votes = _votes(weighing.log_weights(found).exp(), number_of[found.values], len(number_of))
        likeliest = votes.topk(count, dim=-1)
        total = likeliest.values.sum(dim=-1, keepdim=True)
        # Without a neighbor, all of the share is the token's own.
        said = torch.where(total > 0, (1.0 - _OWN) * likeliest.values / total.clamp(min=1e-30), 0.0)
        tokens[some, :count], shares[some, :count] = likeliest.indices, said
        tokens[some, count], shares[some, count] = targets[some], 1.0 - said.sum(dim=-1)
    progress("distributions", len(entries), len(entries))
    return Shares(tokens, shares)


def _before(corpus: Datastore, entries: Ints) -> Prefixes:
    """Returns the last tokens before each entry of a corpus, as many as are compared."""
    contexts = corpus.contexts
    own = np.searchsorted(contexts.first_entry, entries, side="right") - 1
    places = (entries + 1 + own)[:, None] + np.arange(-LONGEST, 0)
    there = places >= contexts.first[own][:, None]
    tokens = np.where(there, np.asarray(corpus.tokens[places.clip(min=0)], np.int64), -1)
    first = np.arange(len(entries), dtype=np.int64) * LONGEST
    return Prefixes(tokens.ravel(), first, first + LONGEST)


def _votes(weights: Tensor, numbers: Tensor, most: int) -> Tensor:
    """Sums weights by token, float32 [rows, tokens]; tokens that the memory lacks get nothing."""
    votes = torch.zeros(len(weights), most)
    known = numbers >= 0
    return votes.scatter_add_(1, numbers.clamp(min=0), weights.nan_to_num(0.0) * known)


def _own_parts(teacher: Datastore, corpus: Datastore, parts: Array) -> Array:
    """int32 [entries of the corpus], the part of the datastore with the same document; -1: none."""
    if corpus is teacher:
        return parts
    there = {digest: number for number, _, digest in contents_of(teacher)}
    own = np.full(len(corpus), -1, np.int32)
    for number, _, digest in contents_of(corpus):
        same = there.get(digest)
        if same is None:
            continue
        first, length = corpus.documents.first[number], corpus.documents.length[number]
        entries = corpus.contexts.entries_of(first[None], length[None])
        # The same document may begin a context here and stand within one there.
        places = teacher.documents.first[same] + np.arange(length)[length - len(entries) :]
        own[entries] = parts[entry_of_places(teacher, places).clip(0, len(parts) - 1)]
    return own
