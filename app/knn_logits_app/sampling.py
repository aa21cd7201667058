"""Logits processors of the app: sampling with a seed of its own, and the candidates of each step.

`generate()` samples with PyTorch's one random state, which all visitors would share: neither would
a seed mean anything, nor could two texts be written at once. Here a token is drawn by adding Gumbel
noise from a private generator and taking the largest, which is a draw from the softmax exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from knn_logits import Neighbors

CANDIDATES = 5
# What stands for a token that ends a text.
END = "(the end)"


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


@dataclass(frozen=True)
class Candidate:
    """A token that might have come next.

    Attributes:
        token: Its text.
        p: Its probability in the mixture.
        p_lm: By the model alone.
        p_knn: By the neighbors; None where none voted.
    """

    token: str
    p: float
    p_lm: float
    p_knn: float | None


@dataclass(frozen=True)
class _Step:
    ids: Tensor
    p: Tensor
    p_lm: Tensor


class NotedGate:
    """A gate whose latest λ is noted, so that a word can be coloured while the text is written.

    Args:
        gate: The gate to ask.
    """

    def __init__(self, gate: Any) -> None:
        self._gate = gate
        self.last = 0.0
        if hasattr(gate, "metric"):
            self.metric = gate.metric
        if hasattr(gate, "searches"):
            self.searches = gate.searches

    def lmbda(self, neighbors: Neighbors, metric: Any, log_p_lm: Tensor) -> Tensor:
        """λ of each row; see `knn_logits.Gate`."""
        found: Tensor = self._gate.lmbda(neighbors, metric, log_p_lm)
        self.last = float(found[-1])
        return found

    def weigh(
        self, neighbors: Neighbors, log_weights: Tensor, metric: Any, log_p_lm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """λ of each row and the neighbors' weights; see `knn_logits.Gate`."""
        weigh = getattr(self._gate, "weigh", None)
        if weigh is None:
            return self.lmbda(neighbors, metric, log_p_lm), log_weights
        found, weights = weigh(neighbors, log_weights, metric, log_p_lm)
        self.last = float(found[-1])
        return found, weights


class Watched(LogitsProcessor):
    """A `KNNLogitsProcessor` whose likeliest tokens are noted at each step.

    Args:
        knn: The processor to call.
    """

    def __init__(self, knn: Any) -> None:
        self.knn = knn
        self.steps: list[_Step] = []
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        mixed: Tensor = self.knn(input_ids, scores)
        log_p, log_p_lm = mixed[0].float(), torch.log_softmax(scores[0].float(), dim=-1)
        if mixed is scores:
            log_p = log_p_lm
        top = torch.topk(log_p, min(CANDIDATES, len(log_p)))
        # The model's own favourite, which the neighbors may have pushed out.
        own = log_p_lm.argmax(keepdim=True)
        ids = top.indices if bool((top.indices == own).any()) else torch.cat([top.indices, own])
        self.steps.append(_Step(ids.cpu(), log_p[ids].exp().cpu(), log_p_lm[ids].exp().cpu()))
        self._last = (log_p, log_p_lm)
        return mixed

    def influence(self, token: int) -> float:
        """The neighbors' share in the probability of the token just chosen, for the live view."""
        if self._last is None:
            return 0.0
        gate = self.knn.gate
        lmbda = gate.last if isinstance(gate, NotedGate) else self.knn.config.lmbda
        log_p, log_p_lm = (float(one[token]) for one in self._last)
        if log_p == log_p_lm:
            return 0.0
        return min(1.0, max(0.0, 1.0 - (1.0 - lmbda) * float(torch.tensor(log_p_lm - log_p).exp())))

    def candidates(self, step: int, lmbda: float, tokenizer: Any) -> list[Candidate]:
        """The likeliest tokens of a step.

        Args:
            step: From 0.
            lmbda: The neighbors' weight at it, 0 where none was found.
            tokenizer: To turn tokens into text.
        """
        one = self.steps[step]
        found = []
        for token, p, p_lm in zip(one.ids.tolist(), one.p.tolist(), one.p_lm.tolist(), strict=True):
            # p = λ p_kNN + (1 - λ) p_LM, solved for p_kNN.
            p_knn = min(1.0, max(0.0, (p - (1 - lmbda) * p_lm) / lmbda)) if lmbda > 0 else None
            # The signs that a model puts around texts are no words that anybody could read.
            special = token in tokenizer.all_special_ids
            found.append(Candidate(END if special else tokenizer.decode([token]), p, p_lm, p_knn))
        return sorted(found, key=lambda one: one.p, reverse=True)
