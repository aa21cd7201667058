"""Ends an answer that goes round in circles. It never forbids a token, so it changes no fact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def goes_round(answer: Sequence[int], size: int) -> bool:
    """Whether the end of an answer goes round.

    Its tokens repeat after a period, for a whole period and for at least `size` tokens.
    """
    length = len(answer)
    for period in range(1, length // 2 + 1):
        repeated = max(period, size)
        stretch = period + repeated
        if stretch > length or answer[-1] != answer[-1 - period]:
            continue
        if answer[-repeated:] == answer[-stretch : length - period]:
            return True
    return False


def end_loops(scores: Tensor, ids: Tensor, start: int, size: int, ends: Sequence[int]) -> Tensor:
    """Leaves a looping row only the tokens that end a text.

    Args:
        scores: [rows, vocabulary].
        ids: int64 [rows, length], the texts, on the CPU.
        start: The length of their prompts.
        size: The fewest tokens that count as repeated.
        ends: The tokens that end a text.

    Returns:
        The scores, [rows, vocabulary]. A text that may not end yet, or never does, keeps them.
    """
    result, answers = scores, ids.numpy()[:, start:]
    places = answers.shape[1] - size
    if places <= 0 or not ends:
        return scores
    # Where the last tokens of each row occur before. Few places agree with more than the last.
    same = np.ones((len(answers), places), bool)
    for back in range(size - 1, -1, -1):
        same &= answers[:, back : back + places] == answers[:, places + back, None]
        if not same.any():
            return scores
    for row in np.flatnonzero(same.any(axis=1)).tolist():
        if not goes_round(answers[row].tolist(), size):
            continue
        ended = torch.full_like(scores[row], float("-inf"))
        ended[ends] = scores[row, ends]
        if bool((ended > torch.finfo(scores.dtype).min).any()):
            result = scores.clone() if result is scores else result
            result[row] = ended
    return result
