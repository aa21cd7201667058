"""The logits processors of the server sample, penalize and record tokens.

Sampling does not use the global random state of PyTorch, which all requests share. Gumbel noise is
added to the log-probabilities, and the token with the largest sum is exactly a sample of the
softmax. The noise depends only on the seed and the position. So the text stays the same when a
position is computed several times, as happens with drafted tokens.
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

from knn_logits_serve.request import Sampling

# The log-probability of an impossible token, since JSON has no infinity.
IMPOSSIBLE = -9999.0
_WORD = 2**64 - 1


def mixed(number: int) -> int:
    """Mixes the bits of a number, so that its 32 low bits depend on all of them.

    PyTorch's generator uses only these 32 bits of a seed. This is the finalizer of splitmix64
    (Steele, Lea and Flood, 2014).
    """
    number = (number + 0x9E3779B97F4A7C15) & _WORD
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _WORD
    return number ^ number >> 31


class PositionSampler(LogitsProcessor):
    """Makes greedy search sample from the distribution. It has to be the last processor."""

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
    """Applies OpenAI's penalties of tokens that were written before, and its bias of tokens."""

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
    """Keeps the distributions of the latest positions, until `at` names the tokens chosen there."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Notes the scores and changes nothing."""
        self._rows[input_ids.shape[1]] = scores
        return scores

    def at(self, position: int, token: int, number: int) -> tuple[float, list[tuple[int, float]]]:
        """Returns the log-probability of a token, and the likeliest tokens in its place."""
        row = torch.log_softmax(self._rows[position][0].float(), dim=-1)
        for step in [step for step in self._rows if step <= position]:
            del self._rows[step]
        best = row.topk(min(number, len(row)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return finite(float(row[token])), [(token_id, finite(value)) for token_id, value in pairs]


def finite(value: float) -> float:
    """Returns a log-probability that JSON can represent."""
    return max(IMPOSSIBLE, value)


def processors(
    sampling: Sampling, seed: int, written: int, first: list[Any]
) -> list[LogitsProcessor]:
    """Returns the processors of one text, in their order."""
    chain: list[LogitsProcessor] = list(first)
    if sampling.presence or sampling.frequency or sampling.bias:
        chain.append(Penalties(sampling, written))
    if sampling.temperature <= 0:
        return chain
    if sampling.temperature != 1.0:
        chain.append(TemperatureLogitsWarper(max(sampling.temperature, 1e-4)))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chain.append(TopPLogitsWarper(sampling.top_p))
    return [*chain, PositionSampler(seed)]
