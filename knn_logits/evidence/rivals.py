"""Finds what the model or its neighbors would have written in place of a token."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from knn_logits.engine.pieces import TextAfter, rest_of_word
from knn_logits.evidence.shares import DocumentVotes, Locate, NameOf, votes_by_document
from knn_logits.evidence.trace import DocumentShare, Rival
from knn_logits.search.neighbors import Neighbors


def by_model(
    token: int, likeliest: tuple[int, float] | None, text_after: TextAfter
) -> Rival | None:
    """Returns the token that the model alone would have chosen, if it is another one.

    Args:
        token: The token in the text.
        likeliest: The model's likeliest token and its log-probability.
        text_after: Returns the text of a token at this place.
    """
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
