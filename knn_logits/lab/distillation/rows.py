"""Learns the rows of a memory by the likelihood of tokens, or of a datastore's distributions.

The rows are an output embedding with several rows a token: p(y) is the softmax over all rows,
summed over the rows of y. Xu, Alon and Neubig (2023), "Why do nearest neighbor language models
work?". A part of the corpus is held out and chooses the epoch and the settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array, Ints
from knn_logits.building.calibration import (
    entry_of_places,
    part_of_entries,
    pieces_of,
    sample_size,
)
from knn_logits.engine.compatibility import vocabulary_size
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import plan
from knn_logits.measure.likelihood import LMBDAS
from knn_logits.measure.text_pass import score_pieces, scoring_batch_tokens
from knn_logits.progress import Progress
from knn_logits.store.datastore import Datastore

# Adam's decays, and its step in units of the rows' own size.
_MOMENTUM, _SQUARES, _STEP = 0.9, 0.99, 0.05
_ROWS_AT_ONCE = 256
_LEAST = 1e-30
_SCALED_TOKENS = 1024
# No more than this share of the corpus is held out.
_MOST = 0.1


@dataclass(frozen=True)
class Held:
    """Tokens that the rows are not learnt from."""

    states: Tensor  # float32 [tokens, dim]
    tokens: Tensor  # int64 [tokens], numbers among the memory's tokens; -1 for another token
    targets: Tensor  # int64 [tokens], as the model numbers them
    log_p_lm: Tensor  # float32 [tokens]


class Rows:
    """Rows that learn: float32 [rows, dim], sorted by token, and changed in place.

    `allotted` is the number of rows of each token, int64 [tokens]. Steps become smaller over
    `steps` of them.
    """

    def __init__(self, rows: Tensor, allotted: Ints, steps: int) -> None:
        self.rows = rows
        device = rows.device
        self.allotted = torch.from_numpy(allotted).to(device)
        self.first = self.allotted.cumsum(0) - self.allotted
        tokens = torch.arange(len(allotted), device=device)
        self.token = torch.repeat_interleave(tokens, self.allotted)
        self._mean, self._square = torch.zeros_like(rows), torch.zeros_like(rows)
        self._size = 0.0
        self._steps, self._step = max(1, steps), 0

    def begin(self, scale: float) -> None:
        """Multiplies the rows before they begin to learn, and chooses the size of a step."""
        self.rows *= scale
        self._size = _STEP * float(self.rows.square().mean().sqrt())

    def learn(self, states: Tensor, tokens: Tensor) -> None:
        """Makes tokens, numbers among the memory's, int64 [batch], likelier after some states."""
        p = torch.softmax(states @ self.rows.T, dim=-1)
        row, column = self._rows_of(tokens)
        votes = p[row, column]
        total = torch.zeros(len(tokens), device=p.device).index_add_(0, row, votes)
        # The gradient at a row is its p less its part in the token's p.
        p[row, column] = votes - votes / total.clamp(min=_LEAST)[row]
        self._move(p.T @ states / len(tokens))

    def learn_shares(self, states: Tensor, tokens: Tensor, shares: Tensor) -> None:
        """Draws the memory to shares of tokens that sum to 1, each [batch, likeliest]."""
        p = torch.softmax(states @ self.rows.T, dim=-1)
        by_token = p.new_zeros(len(p), len(self.allotted)).index_add_(1, self.token, p)
        goal = torch.zeros_like(by_token).scatter_add_(1, tokens, shares)
        ratio = goal / by_token.clamp(min=_LEAST)
        p -= p * ratio[:, self.token]
        self._move(p.T @ states / len(tokens))

    def _rows_of(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The place in a batch, and the row, of each row of each token."""
        allotted = self.allotted[tokens]
        batch = torch.arange(len(tokens), device=tokens.device)
        row = torch.repeat_interleave(batch, allotted)
        before = torch.repeat_interleave(allotted.cumsum(0) - allotted, allotted)
        column = torch.arange(len(row), device=tokens.device) - before
        return row, column + self.first[tokens][row]

    def _move(self, gradient: Tensor) -> None:
        self._step += 1
        self._mean.lerp_(gradient, 1.0 - _MOMENTUM)
        self._square.mul_(_SQUARES).addcmul_(gradient, gradient, value=1.0 - _SQUARES)
        size = self._size * max(0.05, 1.0 - self._step / self._steps)
        size /= 1.0 - _MOMENTUM**self._step
        deviation = (self._square / (1.0 - _SQUARES**self._step)).sqrt_()
        self.rows.addcdiv_(self._mean, deviation.add_(1e-8), value=-size)

    def perplexity(self, held: Held, scale: float = 1.0) -> float:
        """The perplexity of other tokens under the mixture, at the best λ, for scaled rows."""
        log_p = torch.full((len(held.tokens),), -math.inf)
        for first in range(0, len(held.tokens), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            tokens = held.tokens[part].to(self.rows.device)
            learned = tokens >= 0
            states = held.states[part].to(self.rows.device)[learned]
            p = torch.softmax(scale * (states @ self.rows.T), dim=-1)
            row, column = self._rows_of(tokens[learned])
            total = p.new_zeros(len(states)).index_add_(0, row, p[row, column])
            log_p[part][learned.cpu()] = total.log().cpu()
        least = math.inf
        for lmbda in LMBDAS:
            mixed = torch.logaddexp(
                log_p + math.log(max(lmbda, _LEAST)), held.log_p_lm + math.log1p(-lmbda)
            )
            least = min(least, -float(mixed.double().mean()))
        return math.exp(least)


def best_scale(rows: Rows, held: Held, variance: float) -> float:
    """The factor at which rows that are centers of states predict other tokens best."""
    fields = (held.states, held.tokens, held.targets, held.log_p_lm)
    held = Held(*(values[:_SCALED_TOKENS] for values in fields))
    scales = [2.0**power / variance for power in range(1, 8)]
    return min(scales, key=lambda scale: rows.perplexity(held, scale))


def held_out(store: Datastore, seed: int) -> Array:
    """Chooses whole documents of the corpus, or else its end, bool [entries]."""
    entries = len(store)
    size = max(1, min(int(_MOST * entries), sample_size(entries)))
    parts = part_of_entries(store)
    held = np.zeros(entries, dtype=bool)
    numbers, counts = np.unique(parts, return_counts=True)
    for place in np.random.default_rng(seed).permutation(len(numbers)).tolist():
        if held.sum() + counts[place] <= 1.5 * size and len(numbers) > 1:
            held |= parts == numbers[place]
        if held.sum() >= size:
            break
    if not held.any():
        held[-size:] = True
    return held


def read_held(
    model: nn.Module,
    location: KeyLocation,
    store: Datastore,
    held: Array,
    numbers: Ints,
    progress: Progress,
) -> Held:
    """Runs the model over the windows in which the held-out entries stand.

    `numbers` are those of each token among the memory's, int64 [vocabulary]; -1 for none.
    """
    record, contexts = store.manifest.windows, store.contexts
    before = np.concatenate([[0], np.cumsum(held)])
    windows = [
        window
        for window in plan(contexts.first, contexts.length, record.window, record.stride)
        if before[window.first_entry + window.entries] > before[window.first_entry]
    ]
    batch = scoring_batch_tokens(input_device(model), vocabulary_size(model))
    states, targets, log_p_lm = [], [], []
    done, total = 0, int(held.sum())
    progress("held-out text", 0, total)
    with evaluating(model):
        for scored in score_pieces(model, location, pieces_of(store, windows), batch):
            inside = torch.from_numpy(held[entry_of_places(store, scored.places)])
            states.append(scored.states.detach().float().cpu()[inside])
            targets.append(scored.targets[inside])
            log_p_lm.append(scored.log_p_lm[inside])
            done += int(inside.sum())
            progress("held-out text", done, total)
    tokens = torch.cat(targets)
    return Held(torch.cat(states), torch.from_numpy(numbers)[tokens], tokens, torch.cat(log_p_lm))
