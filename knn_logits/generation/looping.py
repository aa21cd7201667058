"""Ends an answer that goes round in circles. It never forbids a token, so it changes no fact."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.calls import local_of_caller
from knn_logits.engine.tokens import end_tokens
from knn_logits.search.neighbors import Neighbors


def looping_rows(texts: Array, size: int) -> Array:
    """The rows of texts, int64 [rows, length], whose last `size` tokens occur there before."""
    places = texts.shape[1] - size
    if places <= 0:
        return np.empty(0, np.int64)
    same = np.ones((len(texts), places), bool)
    # Few places agree with more than the last tokens.
    for back in range(size - 1, -1, -1):
        same &= texts[:, back : back + places] == texts[:, places + back, None]
        if not same.any():
            break
    return np.flatnonzero(same.any(axis=1))


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

    def rounds(self, ids: Tensor, start: int) -> dict[int, list[int]]:
        """By row, the stretch that goes round at the end of texts, int64 [rows, length].

        Args:
            ids: The texts, on the CPU.
            start: The length of their prompts.
        """
        found: dict[int, list[int]] = {}
        for row in looping_rows(ids.numpy()[:, start:], self.size).tolist():
            text: list[int] = ids[row].tolist()
            stretch = round_of(text[start:], self.size)
            if stretch is None:
                continue
            end, places = text[-stretch:], range(start - stretch + 1)
            if all(text[place : place + stretch] != end for place in places):
                found[row] = end
        return found if found and self._ends(sys.maxsize) else {}

    def ended(self, rounds: dict[int, list[int]], scores: Tensor, neighbors: Neighbors) -> Tensor:
        """Returns the scores, with only the tokens that end a text where a row loops."""
        looping = [
            row
            for row, end in rounds.items()
            if not any(self._follows(entry, end) for entry in neighbors.ids[row].tolist())
        ]
        if not looping:
            return scores
        ends = self._ends(scores.shape[-1])
        ended = torch.full_like(scores[looping], float("-inf"))
        ended[:, ends] = scores[looping][:, ends]
        # A text that may not end yet, or never does, continues.
        can = (ended > torch.finfo(scores.dtype).min).any(dim=-1, keepdim=True)
        result = scores.clone()
        result[looping] = torch.where(can, ended, scores[looping])
        return result

    def _ends(self, vocabulary: int) -> list[int]:
        config = local_of_caller("generation_config")
        return list(self.ends) if config is None else end_tokens(config, vocabulary)

    def _follows(self, entry: int, end: list[int]) -> bool:
        """Whether the tokens before an entry's value are the end of an answer."""
        if entry < 0:
            return False
        store, entry = self.locate(entry)
        place = store.contexts.token_of(entry)
        before: list[int] = store.tokens[max(0, place - len(end)) : place].tolist()
        return before == end
