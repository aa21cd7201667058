"""Samples tokens with a seed of each request's own.

`generate()` samples with the global random state of PyTorch, which all visitors share. Two texts
written at the same time would then change each other, whatever their seeds. Here each request has
its own generator. It adds Gumbel noise to the log-probabilities, and the token with the largest sum
is exactly a sample of the softmax.
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
    """Makes greedy search sample from the distribution. It has to be the last processor."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        noise = torch.rand(scores.shape, generator=self._random).clamp_(1e-20, 1 - 1e-7)
        gumbel = -torch.log(-torch.log(noise))
        return torch.log_softmax(scores.float(), dim=-1) + gumbel.to(scores.device)


def samplers(seed: int, temperature: float, top_p: float) -> list[LogitsProcessor]:
    """Returns the processors that sample a token, in their order."""
    found: list[LogitsProcessor] = []
    if temperature != 1.0:
        found.append(TemperatureLogitsWarper(temperature))
    if top_p < 1.0:
        found.append(TopPLogitsWarper(top_p))
    return [*found, GumbelSampler(seed)]
