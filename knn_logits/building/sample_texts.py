"""Short texts that a model writes by itself, and how long it takes to write them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.index.speed import fastest

logger = logging.getLogger(__name__)

# The model writes so many texts, each from another of its likeliest first tokens. The first tokens
# of each say how sure of itself the model is.
_TEXTS, _FIRST, _TOKENS = 24, 8, 24
# A model writes nothing worth protecting if it gives its likeliest token less than this on average.
_SURE = 1 / 3


@torch.no_grad()
def sample_texts(model: nn.Module, tokenizer: Any) -> list[Array] | None:
    """Tokens of texts that a causal model writes; None if it is unsure or writes none."""
    opening = opening_of(model, tokenizer)
    if not opening:
        return None
    decoder: Any = model
    with evaluating(model):
        ids = torch.tensor([opening], device=input_device(model))
        scores = decoder(ids, attention_mask=torch.ones_like(ids)).logits[0, -1]
        first = scores.topk(min(_TEXTS, len(scores))).indices
        ids = torch.cat([ids.repeat(len(first), 1), first.to(ids.device).unsqueeze(1)], dim=1)
        texts = _written(decoder, ids)
    if texts is None:
        return None
    ends = set(np.atleast_1d(decoder.generation_config.eos_token_id or -1).tolist())
    rows = [row[len(opening) :] for row in texts.tolist()]
    lengths = [next((n for n, token in enumerate(row) if token in ends), len(row)) for row in rows]
    return [np.array(row[:n], np.int64) for row, n in zip(rows, lengths, strict=True) if n > 1]


@torch.no_grad()
def writing_seconds(model: nn.Module, tokenizer: Any, token_seconds: float) -> float:
    """Seconds to write the texts on an idle machine, given those of a token that is read."""
    opening = opening_of(model, tokenizer)
    if not opening:
        return 0.0
    decoder: Any = model
    ids = torch.tensor([opening[-1:]] * _TEXTS, device=input_device(model))
    mask = torch.ones_like(ids)
    with evaluating(model):
        step = fastest(lambda: decoder(ids, attention_mask=mask).logits.argmax(-1).cpu())
    return _TEXTS * len(opening) * token_seconds + _TOKENS * step


def opening_of(model: Any, tokenizer: Any) -> list[int]:
    """What stands before a text of a causal model: an empty turn of a chat, or the first token."""
    if not getattr(model, "can_generate", lambda: False)() or model.config.is_encoder_decoder:
        return []
    if getattr(tokenizer, "chat_template", None):
        try:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": ""}], tokenize=False, add_generation_prompt=True
            )
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])
        except Exception as error:  # a template is a program of its own
            logger.debug("the chat template has no empty turn: %s", error)
    config = model.generation_config
    for token in (config.bos_token_id, config.eos_token_id):
        if token is not None:
            return [int(np.atleast_1d(token)[0])]
    return []


def _written(model: Any, ids: Tensor) -> Tensor | None:
    """The texts as the model goes on with them; None if it is unsure of its first tokens."""
    from transformers import GenerationConfig

    likeliest: list[Tensor] = []

    def watched(ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG001
        if len(likeliest) < _FIRST:
            likeliest.append(scores.float().softmax(-1).amax(-1))
        return scores

    def is_unsure() -> bool:
        return float(torch.stack(likeliest).mean()) < _SURE

    def ended(ids: Tensor, scores: object) -> Tensor:  # noqa: ARG001
        return torch.full((len(ids),), len(likeliest) == _FIRST and is_unsure(), device=ids.device)

    ends, pad = (getattr(model.generation_config, f"{name}_token_id") for name in ("eos", "pad"))
    pad = pad if pad is not None else np.atleast_1d(ends if ends is not None else 0)[0]
    config = GenerationConfig(
        max_new_tokens=_TOKENS, do_sample=False, eos_token_id=ends, pad_token_id=int(pad)
    )
    output: Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=config,
        logits_processor=[watched],
        stopping_criteria=[ended],
    )
    return None if is_unsure() else output
