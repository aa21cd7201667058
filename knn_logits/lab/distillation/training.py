"""Learns the rows of a memory by the likelihood of tokens, or of a datastore's distributions.

The rows are an output embedding with several rows a token: p(y) is the softmax over all rows,
summed over the rows of y. Xu, Alon and Neubig (2023), "Why do nearest neighbor language models
work?".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from knn_logits.arrays import Ints
from knn_logits.measure.likelihood import LMBDAS

# Adam's decays, and its step in units of the rows' own size.
_MOMENTUM, _SQUARES, _STEP = 0.9, 0.99, 0.05
_ROWS_AT_ONCE = 256
_LEAST = 1e-30
_TOKENS_ASKED = 1024


@dataclass(frozen=True)
class Held:
    """Tokens that the rows are not learnt from.

    Attributes:
        states: float32 [tokens, dim].
        tokens: int64 [tokens], the number of each among the memory's tokens; -1 for another token.
        targets: int64 [tokens], the tokens as the model numbers them.
        log_p_lm: float32 [tokens], under the model alone.
    """

    states: Tensor
    tokens: Tensor
    targets: Tensor
    log_p_lm: Tensor


class Rows:
    """Rows that learn.

    Args:
        rows: float32 [rows, dim], sorted by token. They are changed in place.
        allotted: int64 [tokens], the number of rows of each token, at least 1.
        steps: Steps until the end, over which they become smaller.
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
        """Makes some tokens likelier.

        Args:
            states: float32 [batch, dim].
            tokens: int64 [batch], numbers among the memory's tokens.
        """
        p = torch.softmax(states @ self.rows.T, dim=-1)
        row, column = self._rows_of(tokens)
        own = p[row, column]
        total = torch.zeros(len(tokens), device=p.device).index_add_(0, row, own)
        # The gradient at a row is its p less its part in the token's p.
        p[row, column] = own - own / total.clamp(min=_LEAST)[row]
        self._move(p.T @ states / len(tokens))

    def learn_shares(self, states: Tensor, tokens: Tensor, shares: Tensor) -> None:
        """Draws the memory to distributions over tokens.

        Args:
            states: float32 [batch, dim].
            tokens: int64 [batch, likeliest], numbers among the memory's tokens.
            shares: float32 [batch, likeliest], their shares, which sum to 1.
        """
        p = torch.softmax(states @ self.rows.T, dim=-1)
        by_token = p.new_zeros(len(p), len(self.allotted)).index_add_(1, self.token, p)
        wanted = torch.zeros_like(by_token).scatter_add_(1, tokens, shares)
        ratio = wanted / by_token.clamp(min=_LEAST)
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
        """The perplexity of other tokens under the mixture, at the best λ.

        Args:
            held: The tokens.
            scale: What the rows are multiplied by.
        """
        log_p = torch.full((len(held.tokens),), -math.inf)
        for first in range(0, len(held.tokens), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            tokens = held.tokens[some].to(self.rows.device)
            known = tokens >= 0
            states = held.states[some].to(self.rows.device)[known]
            p = torch.softmax(scale * (states @ self.rows.T), dim=-1)
            row, column = self._rows_of(tokens[known])
            total = p.new_zeros(len(states)).index_add_(0, row, p[row, column])
            log_p[some][known.cpu()] = total.log().cpu()
        least = math.inf
        for lmbda in LMBDAS:
            mixed = torch.logaddexp(
                log_p + math.log(max(lmbda, _LEAST)), held.log_p_lm + math.log1p(-lmbda)
            )
            least = min(least, -float(mixed.double().mean()))
        return math.exp(least)


def best_scale(rows: Rows, held: Held, variance: float) -> float:
    """The factor at which rows that are centers of states predict other tokens best."""
    held = Held(
        *(one[:_TOKENS_ASKED] for one in (held.states, held.tokens, held.targets, held.log_p_lm))
    )
    scales = [2.0**power / variance for power in range(1, 8)]
    return min(scales, key=lambda scale: rows.perplexity(held, scale))
