"""Neighbors of a retriever that goes from token to token, for windows scored in one pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from knn_logits.neighbors import Neighbors
from knn_logits.retrieval import Retriever
from knn_logits.scoring.text_pass import TokenScores

# Steps that are taken before their neighbors are handed on: with 4 windows of width 2048, 40 MB.
_STEPS_AT_ONCE = 256


def followed(retriever: Retriever, scored: TokenScores) -> Iterator[tuple[TokenScores, Neighbors]]:
    """Steps through the windows of a batch side by side, each one's text its own.

    Args:
        retriever: One whose `follows_text` holds.
        scored: The tokens of one forward pass, one window after another.

    Yields:
        Tokens and their neighbors, in another order than they came in.
    """
    lengths = torch.tensor(scored.lengths)
    starts = torch.cumsum(lengths, 0) - lengths
    longest = int(lengths.max())
    # A text of its own for each window: a number that no token has, then its tokens.
    ids = torch.full((len(lengths), longest + 1), -1, dtype=torch.int64)
    ids[:, 0] = -1 - torch.arange(len(lengths))
    for row, (start, length) in enumerate(zip(starts.tolist(), scored.lengths, strict=True)):
        ids[row, 1 : length + 1] = scored.targets[start : start + length]
    first = 0
    ends = sorted({*scored.lengths, *range(_STEPS_AT_ONCE, longest, _STEPS_AT_ONCE)})
    for end in ends:
        rows = torch.nonzero(lengths >= end)[:, 0]
        steps = torch.arange(first, end)
        places = (starts[rows].unsqueeze(0) + steps.unsqueeze(1)).reshape(-1)
        there = places.to(scored.states.device)
        states = scored.states[there].reshape(len(steps), len(rows), -1).transpose(0, 1)
        yield scored[places], retriever.search_steps(states, ids[rows, :end])
        first = end
