"""Ends an answer that goes round in circles. It never forbids a token, so it changes no fact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from knn_logits.engine.calls import local_of_caller
from knn_logits.engine.tokens import end_tokens
from knn_logits.search.neighbors import Neighbors


def round_of(answer: Sequence[int], size: int) -> int | None:
    """The length of the stretch at an answer's end that goes round; None where none does.

    Its tokens repeat after a period, for a whole period and for at least `size` tokens.
    """
    length = len(answer)
    for period in range(1, length // 2 + 1):
        repeated = max(period, size)
        stretch = period + repeated
        if stretch > length or answer[-1] != answer[-1 - period]:
            continue
        if answer[-repeated:] == answer[-stretch : length - period]:
            return stretch
    return None


@dataclass(frozen=True)
class LoopEnd:
    """Leaves a looping row only the tokens that end a text.

    A row that goes on along a passage, of a document or of its prompt, which itself goes round so,
    is left alone.

    Args:
        size: The fewest tokens that count as repeated.
        locate: Returns the datastore of an entry, and the entry's number there.
        ends: The model's tokens that end a text. Those of the call come first.
    """

    size: int
    locate: Callable[[int], tuple[Any, int]]
    ends: Sequence[int]

    def __call__(
        self, ids: Tensor, start: int, scores: Tensor, neighbors: Neighbors
    ) -> Tensor | None:
        """Returns the scores where a row loops; None where none does. `start` ends the prompt."""
        looping = [row for row in range(len(ids)) if self._loops(ids[row], start, neighbors, row)]
        if not looping:
            return None
        config = local_of_caller("generation_config")
        ends = end_tokens(config, scores.shape[-1]) if config is not None else list(self.ends)
        ended = torch.full_like(scores[looping], float("-inf"))
        ended[:, ends] = scores[looping][:, ends]
        # A text that may not end yet, or never does, goes on.
        can = (ended > torch.finfo(scores.dtype).min).any(dim=-1, keepdim=True)
        result = scores.clone()
        result[looping] = torch.where(can, ended, scores[looping])
        return result

    def _loops(self, ids: Tensor, start: int, neighbors: Neighbors, row: int) -> bool:
        text: list[int] = ids.tolist()
        stretch = round_of(text[start:], self.size)
        if stretch is None:
            return False
        end = text[-stretch:]
        prompt = range(start - stretch + 1)
        if any(text[place : place + stretch] == end for place in prompt):
            return False
        return not any(self._follows(entry, end) for entry in neighbors.ids[row].tolist())

    def _follows(self, entry: int, end: list[int]) -> bool:
        """Whether the tokens before an entry's value are the end of an answer."""
        if entry < 0:
            return False
        store, entry = self.locate(entry)
        place = store.contexts.token_of(entry)
        before: list[int] = store.tokens[max(0, place - len(end)) : place].tolist()
        return before == end
