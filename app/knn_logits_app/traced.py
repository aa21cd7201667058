"""Prepares traces for the page. It leaves out special tokens and uses the page's names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from knn_logits import Candidate, DocumentShare, NeighborTrace, SequenceTrace, Trace

Shown = TypeVar("Shown", NeighborTrace, DocumentShare)
# The text that is shown for a token that ends a text.
END = "(the end)"


def named(sequence: SequenceTrace, names: Mapping[str, str]) -> SequenceTrace:
    """Replaces the datastores' own names in a trace by their names on the page.

    Args:
        sequence: The trace of one text.
        names: The names on the page, by the datastores' own names.
    """
    if all(own == shown for own, shown in names.items()):
        return sequence

    def of(one: Shown) -> Shown:
        return replace(one, store=names.get(one.store, one.store))

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
    return replace(sequence, tokens=tokens)


def words_only(trace: Trace, silent: Collection[int]) -> Trace:
    """Removes special tokens from a trace.

    Args:
        trace: The trace of one sequence.
        silent: The tokens to remove, such as the one that ends a text. Among the candidates of
            another token they stay, under the name `END`.
    """
    sequence = trace[0]
    tokens = [
        replace(one, candidates=[_named_end(other, silent) for other in one.candidates])
        for one in sequence.tokens
        if one.token_id not in silent
    ]
    return Trace([replace(sequence, tokens=tokens)])


def _named_end(candidate: Candidate, silent: Collection[int]) -> Candidate:
    return replace(candidate, token=END) if candidate.token_id in silent else candidate
