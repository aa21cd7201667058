"""Gets neighbors from a retriever that follows text token by token, for whole windows at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from knn_logits.measure.text_pass import TokenScores
from knn_logits.search.neighbors import Neighbors
from knn_logits.search.retriever import Retriever
from knn_logits.search.shared_tokens import LONGEST

# Neighbors are handed on after so many steps. With 4 windows and 2048 columns they take 40 MB.
_STEPS_AT_ONCE = 256


def followed(
    retriever: Retriever, scored: TokenScores, needed: Tensor | None = None
) -> Iterator[tuple[TokenScores, Neighbors]]:
    """Steps through the windows of a batch in parallel. Each window is a text of its own.

    Args:
        needed: bool [tokens], False for tokens that need no neighbors; None if all need them.
    """
    lengths = torch.tensor(scored.lengths)
    starts = torch.cumsum(lengths, 0) - lengths
    longest = int(lengths.max())
    # Each window becomes a text of its own: it starts with a number that no token has, and with the
    # tokens before its first target that entries are compared with.
    before = LONGEST + 1
    ids = torch.full((len(lengths), before + longest), -1, dtype=torch.int64)
    ids[:, 0] = -1 - torch.arange(len(lengths))
    prefixes = scored.prefixes
    for row, (start, length) in enumerate(zip(starts.tolist(), scored.lengths, strict=True)):
        end = int(prefixes.end[start])
        context = prefixes.tokens[max(int(prefixes.first[start]), end - LONGEST) : end]
        ids[row, before - len(context) : before] = torch.from_numpy(context)
        ids[row, before : before + length] = scored.targets[start : start + length]
    first = 0
    ends = sorted({*scored.lengths, *range(_STEPS_AT_ONCE, longest, _STEPS_AT_ONCE)})
    for end in ends:
        rows = torch.nonzero(lengths >= end)[:, 0]
        steps = torch.arange(first, end)
        places = (starts[rows].unsqueeze(0) + steps.unsqueeze(1)).reshape(-1)
        rows_of_states = places.to(scored.states.device)
        states = scored.states[rows_of_states].reshape(len(steps), len(rows), -1).transpose(0, 1)
        needed_steps = None if needed is None else needed[places].reshape(len(steps), len(rows)).T
        yield (
            scored[places],
            retriever.search_steps(states, ids[rows, : before + end - 1], needed_steps),
        )
        first = end
