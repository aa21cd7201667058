"""Measures what a passage does to each word of an answer: it is left out, and the word is scored.

The effect is log p(word | all passages) - log p(word | all but this one), in nats, exact and
signed: the leave-one-out attribution of Cohen-Wang et al. (2024), "ContextCite", section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from knn_logits.engine.forward import input_device


@torch.no_grad()
def answer_log_probs(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """Scores the tokens of an answer after a prompt in one pass, float32 [answer]."""
    ids = torch.tensor([[*prompt, *answer]], device=input_device(model))
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(answer) + 1).logits
    log_p = torch.log_softmax(logits[0, -len(answer) - 1 : -1].float(), dim=-1)
    tokens = ids[0, len(prompt) :, None].to(log_p.device)
    return log_p.gather(1, tokens)[:, 0].cpu()


def effects(
    model: Any, whole: Sequence[int], without: Sequence[Sequence[int]], answer: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Measures the effect of each passage on each token of an answer.

    Args:
        model: A causal language model of transformers.
        whole: The prompt with all passages.
        without: The prompt without each of them.
        answer: The answer's tokens, at least one.

    Returns:
        The log-probabilities with all passages, float32 [answer], and the effects, float32
        [passages, answer].
    """
    log_p = answer_log_probs(model, whole, answer)
    rows = [log_p - answer_log_probs(model, prompt, answer) for prompt in without]
    return log_p, torch.stack(rows) if rows else torch.empty(0, len(answer))
