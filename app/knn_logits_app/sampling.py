"""Logits processors of the app: sampling with a seed of its own.

`generate()` samples with PyTorch's one random state, which all visitors would share: neither would
a seed mean anything, nor could two texts be written at once. Here a token is drawn by adding Gumbel
noise from a private generator and taking the largest, which is a draw from the softmax exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)


class GumbelSampler(LogitsProcessor):
    """Makes greedy search a draw from the distribution; to be the last processor."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        noise = torch.rand(scores.shape, generator=self._random).clamp_(1e-20, 1 - 1e-7)
        gumbel = -torch.log(-torch.log(noise))
        return torch.log_softmax(scores.float(), dim=-1) + gumbel.to(scores.device)


def samplers(seed: int, temperature: float, top_p: float) -> list[LogitsProcessor]:
    """The processors that draw a token, in order."""
    found: list[LogitsProcessor] = []
    if temperature != 1.0:
        found.append(TemperatureLogitsWarper(temperature))
    if top_p < 1.0:
        found.append(TopPLogitsWarper(top_p))
    return [*found, GumbelSampler(seed)]
