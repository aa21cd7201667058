"""Texts that a model writes by itself: they show a gate where a datastore has no part."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.pairs import context_length

logger = logging.getLogger(__name__)

# General questions, which the model answers greedily through its chat template.
QUESTIONS = (
    "Why do leaves change colour in autumn?",
    "Write a short poem about the sea.",
    "How do I boil an egg?",
    "What is the difference between weather and climate?",
    "Give me three tips for sleeping better.",
    "Explain what a noun is.",
    "Who painted the Mona Lisa?",
    "Write a short letter of thanks to a neighbour.",
    "How does a bicycle stay upright?",
    "Name five animals that live in Africa.",
    "What should I pack for a weekend trip?",
    "Explain how vaccines work.",
    "Tell me a joke about a cat.",
    'What is the meaning of the word "patience"?',
    "How many days are there in a leap year?",
    "Describe a busy market in the morning.",
    "What causes thunder?",
    'Write a sentence that uses the word "although".',
    "How do I apologise to a friend?",
    "What is 17 plus 25?",
    "Summarise the story of Romeo and Juliet.",
    "Why is exercise good for the heart?",
    "List the steps for planting a tree.",
    'Translate "good morning" into Spanish.',
)
# Beginnings of texts of many kinds, which the model continues by sampling.
BEGINNINGS = (
    "The city council met on Tuesday to",
    "Abstract. We present a method for",
    "def main():\n    parser =",
    "Chapter 1\n\nIt was a cold morning when",
    "# Installation\n\nTo install the",
    "Dear customer,\n\nThank you for",
    "Ingredients:\n- 2 cups of",
    "Q: How can I",
    "According to a new study, people who",
    "Section 2. The parties agree that",
    "In 1987 the company",
    "import os\n\nclass",
    "The function returns",
    "Note that if the value is",
    "- Added support for",
    "Patients were given",
    "The river flows through",
    '"I don\'t know," she said.',
    "Figure 3 shows the",
    "Once upon a time there was",
    "The following table lists the",
    "Warning: do not use",
    "For example, consider the",
    "My favourite thing about",
)
ANSWER_TOKENS, SAMPLED_TOKENS = 40, 64
# A model with a shorter context writes nothing to learn from.
_MIN_TOKENS = 8


def own_texts(model: Any, tokenizer: Any, seed: int = 0) -> list[tuple[list[int], int]]:
    """Writes texts with a causal model, without a datastore.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        seed: The seed of what is sampled.

    Returns:
        The tokens of each text, and the number of those that were given; none if the model cannot
        write.
    """
    if not getattr(model, "can_generate", lambda: False)() or model.config.is_encoder_decoder:
        return []
    beginnings = [list(tokenizer(text)["input_ids"]) for text in BEGINNINGS]
    with evaluating(model), torch.random.fork_rng():
        torch.manual_seed(seed)
        texts = _written(model, beginnings, SAMPLED_TOKENS, do_sample=True)
        return texts + _written(model, _chats(tokenizer), ANSWER_TOKENS, do_sample=False)


def _chats(tokenizer: Any) -> list[list[int]]:
    """The questions through the chat template; none if the tokenizer has none."""
    if not getattr(tokenizer, "chat_template", None):
        return []
    try:
        turns = [[{"role": "user", "content": question}] for question in QUESTIONS]
        texts = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of its own
        logger.debug("the chat template takes no question: %s", error)
        return []
    return [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


@torch.no_grad()
def _written(
    model: Any, prompts: Sequence[list[int]], tokens: int, *, do_sample: bool
) -> list[tuple[list[int], int]]:
    """Continues prompts in one batch, up to the token that ends a text."""
    from transformers import GenerationConfig

    prompts = [prompt for prompt in prompts if prompt]
    longest = max(map(len, prompts), default=0)
    tokens = min(tokens, (context_length(model) or sys.maxsize) - longest)
    if not prompts or tokens < _MIN_TOKENS:
        return []
    ends, device = model.generation_config.eos_token_id, input_device(model)
    # Padding is masked, and cut off where a text has ended, so that any token will do.
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    config = GenerationConfig(
        max_new_tokens=tokens,
        do_sample=do_sample,
        top_k=0 if do_sample else None,
        eos_token_id=ends,
        pad_token_id=0,
    )
    output: Tensor = model.generate(
        ids.to(device), attention_mask=mask.to(device), generation_config=config
    )
    last = set() if ends is None else set(np.atleast_1d(ends).tolist())
    texts = []
    for prompt, written in zip(prompts, output[:, longest:].tolist(), strict=True):
        length = next((n + 1 for n, token in enumerate(written) if token in last), len(written))
        texts.append(([*prompt, *written[:length]], len(prompt)))
    return texts
