"""Traces as the page shows them: without what is no word, with the names of its datastores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from knn_logits import Datastore, DocumentShare, NeighborTrace, Trace
from knn_logits_app.requests import Lookup
from knn_logits_app.sampling import Candidate, Watched

Shown = TypeVar("Shown", NeighborTrace, DocumentShare)
Candidates = tuple[Sequence[Candidate], ...]


def named(trace: Trace, stores: Sequence[Datastore], lookup: Lookup) -> Trace:
    """The trace with the datastores' names on the page in place of their folders'."""
    names = {store.name: name for store, name in zip(stores, lookup.stores, strict=True)}

    def of(one: Shown) -> Shown:
        return replace(one, store=names.get(one.store, one.store))

    sequence = trace[0]
    tokens = []
    for token in sequence.tokens:
        rival = token.by_memory
        if rival is not None and rival.document is not None:
            rival = replace(rival, document=of(rival.document))
        tokens.append(
            replace(
                token,
                neighbors=[of(one) for one in token.neighbors],
                documents=[of(one) for one in token.documents],
                by_memory=rival,
            )
        )
    return Trace([replace(sequence, tokens=tokens)])


def candidates_of(trace: Trace, watched: Watched, tokenizer: Any) -> Candidates:
    """What might have stood at each token of a trace."""
    return tuple(
        watched.candidates(place, token.lmbda, tokenizer) if place < len(watched.steps) else ()
        for place, token in enumerate(trace[0].tokens)
    )


def words_only(
    trace: Trace, candidates: Candidates, silent: Collection[int]
) -> tuple[Trace, Candidates]:
    """A trace and its candidates without the tokens that are no words.

    Args:
        trace: Of one sequence.
        candidates: Those of its tokens.
        silent: What is left out, such as the token that ends a text.
    """
    sequence = trace[0]
    kept = [place for place, one in enumerate(sequence.tokens) if one.token_id not in silent]
    tokens = [sequence.tokens[place] for place in kept]
    return Trace([replace(sequence, tokens=tokens)]), tuple(candidates[place] for place in kept)
