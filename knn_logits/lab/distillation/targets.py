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
    OVERSAMPLING,
    entry_of_places,
    part_of_entries,
    without_part,
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
_TEXT_SHARE = 0.5


@dataclass(frozen=True)
class Shares:
    """What is to be learnt at some entries."""

    tokens: Array  # int32 [entries, likeliest], numbers among the memory's tokens
    shares: Array  # float32 [entries, likeliest], which sum to 1


def shares_by(
    teacher: Datastore,
    corpus: Datastore,
    entries: Ints,
    held: Array,
    numbers: Ints,
    progress: Progress,
) -> Shares:
    """The shares that a datastore gives to tokens at entries of a corpus, which may be its own.

    It says nothing of the parts of the text that are held out, bool [entries of the corpus], or the
    rows would learn what chooses them. `numbers` are those of each token among the memory's,
    int64 [vocabulary]; -1 for none.
    """
    settings = teacher.manifest.settings
    k = min(settings.k, _K)
    config = KNNConfig.of(settings, k=min(len(teacher), OVERSAMPLING * k))
    retriever, weighing = Retriever(teacher, config), Weighing.of(config)
    parts = part_of_entries(teacher)
    part_of = _parts_in(teacher, corpus, parts)
    away = np.isin(parts, part_of[held & (part_of >= 0)]).astype(np.int32)
    number_of = torch.from_numpy(numbers)
    targets = number_of[corpus.values[torch.from_numpy(entries)].long()]
    count = min(_LIKELIEST, int(numbers.max()) + 1)
    tokens = np.empty((len(entries), count + 1), np.int32)
    shares = np.empty((len(entries), count + 1), np.float32)
    for first in range(0, len(entries), _QUERIES_AT_ONCE):
        progress("distributions", first, len(entries))
        batch = slice(first, first + _QUERIES_AT_ONCE)
        ids = entries[batch]
        states = torch.from_numpy(corpus.keys(ids).astype(np.float32))
        neighbors = retriever.search(states, _before(corpus, ids)).to("cpu")
        neighbors = without_part(neighbors, torch.from_numpy(part_of[ids]), parts)
        neighbors = without_part(neighbors, torch.ones(len(ids), dtype=torch.int32), away)
        votes = _votes(
            weighing.log_weights(neighbors).exp(), number_of[neighbors.values], len(number_of)
        )
        likeliest = votes.topk(count, dim=-1)
        total = likeliest.values.sum(dim=-1, keepdim=True)
        # Without a neighbor, all of the share is the token's own.
        voted = (1.0 - _TEXT_SHARE) * likeliest.values / total.clamp(min=1e-30)
        voted = torch.where(total > 0, voted, 0.0)
        tokens[batch, :count], shares[batch, :count] = likeliest.indices, voted
        tokens[batch, count], shares[batch, count] = targets[batch], 1.0 - voted.sum(dim=-1)
    progress("distributions", len(entries), len(entries))
    return Shares(tokens, shares)


def _before(corpus: Datastore, entries: Ints) -> Prefixes:
    """The last tokens before each entry of a corpus, as many as are compared."""
    contexts = corpus.contexts
    context = np.searchsorted(contexts.first_entry, entries, side="right") - 1
    places = (entries + 1 + context)[:, None] + np.arange(-LONGEST, 0)
    inside = places >= contexts.first[context][:, None]
    tokens = np.where(inside, np.asarray(corpus.tokens[places.clip(min=0)], np.int64), -1)
    first = np.arange(len(entries), dtype=np.int64) * LONGEST
    return Prefixes(tokens.ravel(), first, first + LONGEST)


def _votes(weights: Tensor, numbers: Tensor, most: int) -> Tensor:
    """Sums weights by token, float32 [rows, tokens]; tokens that the memory lacks get nothing."""
    votes = torch.zeros(len(weights), most)
    learned = numbers >= 0
    return votes.scatter_add_(1, numbers.clamp(min=0), weights.nan_to_num(0.0) * learned)


def _parts_in(teacher: Datastore, corpus: Datastore, parts: Array) -> Array:
    """int32 [entries of the corpus], the part of the datastore with the same document; -1: none."""
    if corpus is teacher:
        return parts
    documents = {digest: number for number, _, digest in contents_of(teacher)}
    part_of = np.full(len(corpus), -1, np.int32)
    for number, _, digest in contents_of(corpus):
        same = documents.get(digest)
        if same is None:
            continue
        first, length = corpus.documents.first[number], corpus.documents.length[number]
        entries = corpus.contexts.entries_of(first[None], length[None])
        # The same document may begin a context in one of them only.
        places = teacher.documents.first[same] + np.arange(length)[length - len(entries) :]
        part_of[entries] = parts[entry_of_places(teacher, places).clip(0, len(parts) - 1)]
    return part_of
