"""Chooses the sentence that answers a question: by the words that it shares, and by the model.

The model scores the question after each sentence: the query likelihood of Ponte and Croft (1998),
by a language model as in Sachan et al. (2022), "Improving Passage Retrieval with Zero-Shot Question
Generation", equation 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.ask.ranking import Ranked, content_words, words_of
from knn_logits.engine.forward import input_device, padded
from knn_logits.engine.tokens import text_ids

# So many sentences are scored by the model, those with the most shared words.
_SCORED = 8
# The weight of shared words beside the query likelihood, in nats, and that of a sentence before.
_SHARED, _BEFORE = 1.0, 0.3
_BOUNDARY = re.compile(
    r"(?<=[.!?])[\"'”’)\]]*\s+(?=[A-Z0-9\"'“\u2018(\[`*_])|(?<=[。\uff01\uff1f])|\n\s*\n"
)
_LISTED = re.compile(r"[-*+•|>#]|\d+[.)]\s|[A-Z]:\s")
_SHORT_LINE = 60
# What stands before an item of a list or an answer, and is no part of what it says.
_MARKER = re.compile(r"(?:[-*+•>]|\d+[.)]|[QA]:)\s+")
_HEADING = re.compile(r"#{1,6}\s|[=\-~^]{3,}$")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a passage that was ranked.

    Attributes:
        text: The sentence.
        source: Its passage.
        shared: The idf of the question's words that it has, with a part of those of the sentence
                before it.
        lead: The document's own question before it, which the model reads with it.
    """

    text: str
    source: Ranked
    shared: float
    lead: str = ""


def sentences_of(text: str) -> list[str]:
    """Cuts a passage in sentences. The items of a list and the rows of a table are sentences."""
    parts = []
    for block in re.split(r"\n[ \t]*\n", text):
        lines = block.split("\n")
        short = max(map(len, lines)) < _SHORT_LINE
        joined = lines[0]
        for before, line in pairwise(lines):
            apart = short or _LISTED.match(line.strip()) or _HEADING.match(before.strip())
            joined += ("\n\n" if apart else "\n") + line
        parts += [" ".join(part.split()) for part in _BOUNDARY.split(joined) if part]
    return [part for part in parts if any(map(str.isalnum, part))]


def candidates(
    question: str, ranked: Sequence[Ranked], idf: Callable[[str], float]
) -> list[Sentence]:
    """Lists the sentences of passages that may answer a question, the likeliest first.

    A question in a document is not an answer: what follows it is.
    """
    weights = {word: idf(word) for word in set(content_words(question))}
    listed = []
    for row in ranked:
        before, lead = 0.0, ""
        for text in sentences_of(row.passage.text):
            words = set(words_of(text))
            shared = sum(weight for word, weight in weights.items() if word in words)
            is_question = text.endswith("?")
            is_heading = bool(_HEADING.match(text)) or text == row.passage.heading
            if not is_question and not is_heading:
                total = max(shared, before) if lead else shared + _BEFORE * before
                listed.append(Sentence(_without_marker(text), row, total, lead))
            before = shared if is_question or is_heading else shared + _BEFORE * before
            lead = text if is_question else ""
    return sorted(listed, key=lambda sentence: -sentence.shared)


def _without_marker(text: str) -> str:
    marker = _MARKER.match(text)
    return text[marker.end() :] if marker else text


@torch.no_grad()
def query_likelihoods(model: Any, tokenizer: Any, question: str, sentences: Sequence[str]) -> Array:
    """Computes log p(question | sentence) for each sentence in one pass, float64 [sentences]."""
    ids = text_ids(tokenizer, f" {question}", around=False)
    begins = [text_ids(tokenizer, f"{sentence}\nQuestion:") for sentence in sentences]
    rows = [np.array([*begin, *ids]) for begin in begins]
    logits = model(**padded(rows, input_device(model)), use_cache=False).logits
    tokens = torch.tensor(ids, device=logits.device)[:, None]
    likelihoods = []
    for row, begin in enumerate(begins):
        first = len(begin) - 1
        scores = logits[row, first : first + len(ids)].float().log_softmax(dim=-1)
        likelihoods.append(float(scores.gather(1, tokens).sum()))
    return np.array(likelihoods)


def gain(model: Any, tokenizer: Any, question: str, passages: Sequence[str]) -> float:
    """Computes how much likelier a question is after the best of some passages, in nats a token."""
    *after, alone = query_likelihoods(model, tokenizer, question, [*passages, ""])
    return float(max(after) - alone) / len(text_ids(tokenizer, f" {question}", around=False))


def best_sentence(
    model: Any, tokenizer: Any, question: str, listed: Sequence[Sentence]
) -> Sentence | None:
    """Chooses the sentence to quote; None if there is none."""
    if len(listed) < 2:
        return next(iter(listed), None)
    tried = listed[:_SCORED]
    scores = query_likelihoods(
        model, tokenizer, question, [f"{row.lead} {row.text}".strip() for row in tried]
    )
    scores = scores + _SHARED * np.array([row.shared for row in tried])
    return tried[int(scores.argmax())]
