"""Finds the words of a sentence that answer a question: the span that the model would answer with.

After a few examples the model scores spans of the sentence as answers: the log-probability of a
span's tokens and of the line break after them, over the root of their number, which is the length
penalty of Wu et al. (2016), "Google's Neural Machine Translation System", equation 14.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from knn_logits.ask.cells import cell_of_question
from knn_logits.ask.languages import ENGLISH, language_of
from knn_logits.ask.ranking import content_words, offers_a_choice, words_of
from knn_logits.engine.forward import input_device, padded
from knn_logits.engine.model_changes import weights_state
from knn_logits.engine.pairs import context_length
from knn_logits.engine.pieces import token_texts
from knn_logits.engine.tokens import text_ids
from knn_logits.generation.arguments import can_draft

# They show the model how short an answer is.
_EXAMPLES = """\
The old bridge over the Lenne was opened in 1932 by the mayor of Altena and closed in 1984.
Question: When was the bridge over the Lenne opened?
Answer: 1932

Marta Lindqvist, who studied botany at Uppsala, founded the garden with a gift from her aunt.
Question: Who founded the garden?
Answer: Marta Lindqvist

The filter must be rinsed with warm water every two weeks to keep it free of lime.
Question: Why must the filter be rinsed?
Answer: to keep it free of lime

"""
# The spans that are scored begin at so many words of a sentence, and have so many words at most.
_STARTS, _WORDS = 6, 12
# No span has more tokens, and no longer sentence with its question is read.
_TOKENS, _LONGEST = 32, 512
# The cache of the examples, with what it depends on.
_examples_read: WeakKeyDictionary[Any, tuple[list[Any], Any]] = WeakKeyDictionary()
_WORD = re.compile(r"[$€£#§]?\w(?:\w|[.,:'’/@&+-](?=\w))*[%°]?")


@dataclass(frozen=True)
class Span:
    """The words of a sentence that answer a question.

    Attributes:
        start: Position of their first character in the sentence.
        end: Position after their last character.
        score: How likely the model answers with them, in nats; at most 0.
    """

    start: int
    end: int
    score: float

    def within(self, sentence: str) -> str:
        """Returns the words."""
        return sentence[self.start : self.end]


@torch.no_grad()
def answer_spans(
    model: Any,
    tokenizer: Any,
    question: str,
    sentences: Sequence[tuple[str, str]],
    scores: Sequence[float] | None = None,
) -> tuple[list[Span | None], int]:
    """Finds the likeliest answer in each sentence, as long as its own score may still win.

    Args:
        model: A causal language model.
        tokenizer: The model's tokenizer.
        question: The question.
        sentences: The sentences, each after what is read before it.
        scores: Their scores, the highest first. With its span's score a sentence may beat the
            one before; where no further one can, the rest is not read (None: all are read).

    Returns:
        The spans and the number of forward passes. There is no span, but None, in a sentence that
        is too long or whose words are all in the question, and for a model that has no chat
        template or whose cache cannot be cut: one that follows no instructions picks by chance.
    """
    examples = text_ids(tokenizer, _EXAMPLES)
    instructed = bool(getattr(tokenizer, "chat_template", None))
    if not instructed or not can_draft(model, torch.tensor([examples]), {}):
        return [None] * len(sentences), 0
    room = context_length(model)
    most = _LONGEST if room is None else min(_LONGEST, room - len(examples) - _TOKENS)
    if most < 1:
        return [None] * len(sentences), 0
    line_break = text_ids(tokenizer, "\n", around=False)[0]
    # Words of the question answer it only where it offers a choice.
    language = language_of(question)
    asked_for = () if offers_a_choice(question) else words_of(question, language)
    repeated = frozenset(asked_for)
    reader = _Reader(model)
    reader.begin(examples)
    spans: list[Span | None] = []
    best = -math.inf
    scores = scores or [0.0] * len(sentences)
    for (lead, sentence), score in zip(sentences, scores, strict=True):
        # A span's score is at most 0.
        if score <= best:
            break
        read = f"{lead}\n{sentence}" if lead else sentence
        asked = text_ids(tokenizer, f"{read}\nQuestion: {question}\nAnswer:", around=False)
        if len(asked) > most:
            spans.append(None)
            continue
        first = reader.read(asked, last=1)[0]
        cell = cell_of_question(question, lead, sentence, language)
        span = _likeliest(reader, tokenizer, sentence, first, line_break, repeated, language, cell)
        spans.append(span)
        best = max(best, score + span.score if span else best)
        reader.forget(len(asked))
    return spans, reader.passes


def _likeliest(
    reader: _Reader,
    tokenizer: Any,
    sentence: str,
    first: Tensor,
    line_break: int,
    repeated: frozenset[str],
    language: str = ENGLISH,
    cell: tuple[int, int] | None = None,
) -> Span | None:
    """The likeliest answer in a sentence, or its cell, with a word that is not repeated."""
    words = [match.span() for match in _WORD.finditer(sentence, *(cell or ()))]
    texts = [
        f" {sentence[start : words[min(place + _WORDS, len(words)) - 1][1]]}"
        for place, (start, _) in enumerate(words)
    ]
    rows = [text_ids(tokenizer, text, around=False)[:_TOKENS] for text in texts]
    begins = sorted(range(len(rows)), key=lambda row: -float(first[rows[row][0]]))[:_STARTS]
    ends = {end for _, end in words}
    best: Span | None = None
    for batch in (begins[:1], begins[1:]):
        # No span's score exceeds that of its first token, over the root of the longest span.
        batch = [
            row
            for row in batch
            if best is None or first[rows[row][0]] / (len(rows[row]) + 1) ** 0.5 > best.score
        ]
        for row, after in zip(batch, reader.after([rows[row] for row in batch]), strict=True):
            ids, start = rows[row], words[row][0]
            log_p = torch.cat([first[None], after[:-1]]).gather(1, torch.tensor(ids)[:, None])
            totals = (log_p[:, 0].cumsum(0) + after[:, line_break]).tolist()
            lengths = accumulate(map(len, token_texts(tokenizer, ids)))
            for number, (total, length) in enumerate(zip(totals, lengths, strict=True), 1):
                # The tokens' text begins with a blank.
                span = Span(start, start + length - 1, total / (number + 1) ** 0.5)
                if (
                    span.end in ends
                    and (best is None or span.score > best.score)
                    and not repeated.issuperset(content_words(span.within(sentence), language))
                ):
                    best = span
    return best


class _Reader:
    """Reads a text piece by piece, and forgets its end."""

    def __init__(self, model: Any) -> None:
        self._model, self._device = model, input_device(model)
        self._cache: Any = None
        self._length = 0
        self.passes = 0

    def begin(self, examples: Sequence[int]) -> None:
        """Reads the examples, or takes their cache from a question before."""
        state = [examples, *weights_state(self._model)]
        before, cache = _examples_read.get(self._model, (None, None))
        if before == state:
            self._cache, self._length = copy.deepcopy(cache), len(examples)
            return
        self.read(examples, last=1)
        if hasattr(self._cache, "batch_repeat_interleave"):
            _examples_read[self._model] = state, copy.deepcopy(self._cache)

    def read(self, ids: Sequence[int], last: int = 0) -> Tensor:
        """Returns log p after each token or after the last ones, float32 [tokens, vocabulary]."""
        log_p, self._cache = self._pass([ids], self._cache, last)
        self._length += len(ids)
        return log_p[0]

    def after(self, rows: Sequence[Sequence[int]]) -> Iterator[Tensor]:
        """Yields for each of several continuations what `read` returns. None of them is kept."""
        if len(rows) > 1 and hasattr(self._cache, "batch_repeat_interleave"):
            cache = copy.deepcopy(self._cache)
            cache.batch_repeat_interleave(len(rows))
            log_p, _ = self._pass(rows, cache)
            yield from (log_p[row, : len(ids)] for row, ids in enumerate(rows))
            return
        for ids in rows:
            yield self.read(ids)
            self.forget(len(ids))

    def _pass(self, rows: Sequence[Sequence[int]], cache: Any, last: int = 0) -> tuple[Tensor, Any]:
        self.passes += 1
        ids = padded([np.asarray(row) for row in rows], self._device)["input_ids"]
        output = self._model(
            input_ids=ids,
            attention_mask=ids.new_ones(len(rows), self._length + ids.shape[1]),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=last,
        )
        logits: Tensor = output.logits
        return logits.float().log_softmax(dim=-1).cpu(), output.past_key_values

    def forget(self, tokens: int) -> None:
        self._cache.crop(-tokens)
        self._length -= tokens
