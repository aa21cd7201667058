"""The evidence of a written answer: what each passage does to it, and which one has its words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from knn_logits.ask.ranking import Ranking
from knn_logits.engine.forward import input_device
from knn_logits.evidence.sources import PUNCTUATION

_ENDS_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*\s*$|[。\uff01\uff1f]\s*$")


@torch.no_grad()
def log_prob(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Scores an answer of at least one token after a prompt in one pass.

    The difference that a passage in the prompt makes is the leave-one-out attribution of
    Cohen-Wang et al. (2024), "ContextCite", section 2.
    """
    ids = torch.tensor([[*prompt, *answer]], device=input_device(model))
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(answer) + 1).logits
    log_p = torch.log_softmax(logits[0, -len(answer) - 1 : -1].float(), dim=-1)
    tokens = ids[0, len(prompt) :, None].to(log_p.device)
    return float(log_p.gather(1, tokens).sum())


def sources_of_words(
    words: Sequence[str], question: str, passages: Sequence[str], ranking: Ranking
) -> list[int | None]:
    """The number of the passage that says it, for each word of an answer; None where none has it.

    Among the passages that have the word, the rule takes the passage that shares most with its
    sentence and the question, by idf. `docs/research/evidence.md` has measurements.
    """
    holds = [set(ranking.content_words(text)) for text in passages]
    sentences: list[list[str]] = [[]]
    for word in words:
        sentences[-1].append(word)
        if _ENDS_SENTENCE.search(word):
            sentences.append([])
    names: list[int | None] = []
    for sentence in sentences:
        around = [set(ranking.content_words(text)) for text in (" ".join(sentence), question)]
        for word in sentence:
            content = set(ranking.content_words(word.strip(PUNCTUATION)))
            scores = {
                number: sum(ranking.idf(each) for part in around for each in part & held)
                for number, held in enumerate(holds)
                if content and content <= held
            }
            names.append(max(scores, key=lambda number: scores[number], default=None))
    return names
