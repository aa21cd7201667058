"""Logits processors of the server: what a request changes, and what it wants to be told.

A token is drawn without PyTorch's one random state, which all requests would share: Gumbel noise is
added and the largest is taken, which is a draw from the softmax exactly. The noise of a position
follows from the seed and the position alone, so a text is the same however often a position is
asked for, as it is when tokens are drafted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from knn_logits_serve.asked import Sampling

# The log-probability of what cannot be: JSON knows no infinity.
IMPOSSIBLE = -9999.0
_WORD = 2**64 - 1


def mixed(number: int) -> int:
    """A number whose 32 low bits, all that PyTorch's generator reads, depend on every bit of it.

    The finalizer of splitmix64 (Steele, Lea and Flood, 2014).
    """
    number = (number + 0x9E3779B97F4A7C15) & _WORD
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _WORD
    return number ^ number >> 31


class PositionSampler(LogitsProcessor):
    """Makes greedy search a draw from the distribution; to be the last processor.

    Args:
        seed: With the position it gives the noise.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = torch.Generator()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Adds the noise of this position to the scores of its tokens."""
        place = mixed(self._seed) + input_ids.shape[1]
        self._random.manual_seed(mixed(place) & 0xFFFFFFFF)
        noise = torch.rand(scores.shape[-1], generator=self._random).clamp_(1e-20, 1 - 1e-7)
        gumbel = -torch.log(-torch.log(noise))
        return torch.log_softmax(scores.float(), dim=-1) + gumbel.to(scores.device)


class Penalties(LogitsProcessor):
    """OpenAI's penalties of tokens that were written before, and its bias of tokens.

    Args:
        sampling: What is asked for.
        written: Length of the text before the first token that counts.
    """

    def __init__(self, sampling: Sampling, written: int) -> None:
        self._presence, self._frequency = sampling.presence, sampling.frequency
        self._written = written
        self._tokens = torch.tensor(list(sampling.bias), dtype=torch.int64)
        self._bias = torch.tensor(list(sampling.bias.values()), dtype=torch.float32)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Changes the scores of one row."""
        scores = scores.float().clone()
        if len(self._tokens):
            scores[:, self._tokens.to(scores.device)] += self._bias.to(scores.device)
        if self._presence or self._frequency:
            before = input_ids[0, self._written :].to(scores.device)
            tokens, often = before.unique(return_counts=True)
            scores[:, tokens] -= self._presence + self._frequency * often.float()
        return scores


class Overheard(LogitsProcessor):
    """Keeps the distribution of the latest positions, until it is asked which token was taken."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Notes the scores and changes nothing."""
        self._rows[input_ids.shape[1]] = scores
        return scores

    def at(self, position: int, token: int, number: int) -> tuple[float, list[tuple[int, float]]]:
        """The log-probability of a token, and the likeliest tokens in its place.

        Args:
            position: The token's; those before it are forgotten.
            token: The token.
            number: Of likeliest tokens.
        """
        row = torch.log_softmax(self._rows[position][0].float(), dim=-1)
        for one in [one for one in self._rows if one <= position]:
            del self._rows[one]
        best = row.topk(min(number, len(row)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return finite(float(row[token])), [(one, finite(value)) for one, value in pairs]


def finite(value: float) -> float:
    """A log-probability that JSON has a number for."""
    return max(IMPOSSIBLE, value)


def processors(
    sampling: Sampling, seed: int, written: int, first: list[Any]
) -> list[LogitsProcessor]:
    """The processors of one text, in order.

    Args:
        sampling: How a token is chosen.
        seed: Of this text.
        written: Length of the text that is given.
        first: Processors that stand before them.
    """
    found: list[LogitsProcessor] = list(first)
    if sampling.presence or sampling.frequency or sampling.bias:
        found.append(Penalties(sampling, written))
    if sampling.temperature <= 0:
        return found
    if sampling.temperature != 1.0:
        found.append(TemperatureLogitsWarper(max(sampling.temperature, 1e-4)))
    if sampling.top_k:
        found.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        found.append(TopPLogitsWarper(sampling.top_p))
    return [*found, PositionSampler(seed)]
