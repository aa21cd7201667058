"""Ranks the sentences of documents by their meaning and by the words that they share.

The score is the similarity of the encoder's vectors plus a share of BM25, divided by its maximum:
Robertson and Zaragoza (2009), "The Probabilistic Relevance Framework: BM25 and Beyond". The best
sentences are compared with the question once more, token by token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.engine.encoder import Encoder
from knn_logits.engine.passages import Passage, Sentence, bm25s, read_passages, words_of
from knn_logits.store.datastore import Datastore

# The weight of BM25 beside the similarity: of 0.2 to 0.7 it is the best on XQuAD. The share of the
# question's words has the same weight among the sentences that are compared token by token.
_WORDS_WEIGHT = 0.3
# The number of sentences that are compared token by token, and the weight of this comparison: of
# 0.3 to 10 about the best on XQuAD and NQ-open.
_RERANKED, _TOKENS_WEIGHT = 10, 2.7
# Chosen on halves of XQuAD, with and without the paragraph that answers, and of CLAP NQ: 85% of the
# questions that have an answer there pass, and 60% of XQuAD's by shared words.
_GAP_WEIGHT, _MIN_CLOSENESS, _MIN_SHARED = 1.75, 0.68, 0.69
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Found:
    """A sentence that fits a question.

    Attributes:
        passage: Its passage.
        sentence: The sentence.
        similarity: See `Encoder.similarities`; None without an encoder.
        interaction: The soft minimum and the mean of `Encoder.late_interaction`; None without an
            encoder, and beyond the best.
        shared: The share of the question's words that it has, by idf, in [0, 1].
    """

    passage: Passage
    sentence: Sentence
    similarity: float | None
    interaction: tuple[float, float] | None
    shared: float


class Ranking:
    """The sentences of datastores, with their words and vectors."""

    def __init__(
        self, tokenizer: Any, stores: Sequence[Datastore], encoder: Encoder | None
    ) -> None:
        parts = [(store, read_passages(tokenizer, store)) for store in stores]
        passages = [passage for _, read in parts for passage in read]
        self.rows = [(passage, row) for passage in passages for row in passage.sentences]
        self._languages = list(dict.fromkeys(passage.language for passage in passages)) or ["en"]
        words = [
            words_of(text, passage.language) for passage in passages for text in passage.texts()
        ]
        self._words = [frozenset(row) for row in words]
        self._counts = Counter(word for row in self._words for word in row)
        self._index: Any = None
        if any(words):
            self._index = bm25s().BM25()
            self._index.index(words, show_progress=False)
        self._encoder, self._vectors = encoder, list(_vectors(parts)) if encoder else []
        if sum(map(len, self._vectors)) != len(self.rows):
            self._vectors = []

    def idf(self, word: str) -> float:
        """ln(1 + (N - n + 1/2) / (n + 1/2)) for a word of n sentences of N, at least of one."""
        count, total = max(1, self._counts[word]), len(self.rows)
        return math.log(1 + (total - count + 0.5) / (count + 0.5))

    def content_words(self, text: str) -> list[str]:
        """The words of a text that say what it is about, as the documents' languages have them."""
        words = (words_of(text, code, common=False) for code in self._languages)
        return list(dict.fromkeys(word for row in words for word in row))

    def rank(self, question: str, number: int, hidden: Collection[int] = ()) -> list[Found]:
        """Finds the sentences that fit a question best, the best first, but for hidden rows."""
        asked = self.content_words(question)
        words = [word for word in asked if self._counts[word]]
        score: Array = np.zeros(len(self.rows), np.float32)
        if words and self._index is not None:
            score += self._index.get_scores(words)
            score /= max(float(score.max()), 1e-9)
        shown = np.ones(len(self.rows), bool)
        shown[list(hidden)] = False
        similarities = self._similarities(question)
        if similarities is None:
            shown &= score > 0
        else:
            score = similarities + _WORDS_WEIGHT * score
        score[~shown] = -np.inf
        best = np.argsort(-score, kind="stable")[: min(number, int(shown.sum()))]
        total = sum(map(self.idf, asked)) or 1.0
        shared = {
            row: sum(map(self.idf, self._words[row].intersection(words))) / total
            for row in best.tolist()
        }
        interactions: dict[int, tuple[float, float]] = {}
        if self._encoder is not None and similarities is not None and len(best):
            near = best[:_RERANKED]
            rows = map(self.rows.__getitem__, near)
            texts = [passage.below(sentence) for passage, sentence in rows]
            low, mean = self._encoder.late_interaction(texts, question)
            compared = zip(low.tolist(), mean.tolist(), strict=True)
            interactions = dict(zip(near.tolist(), compared, strict=True))
            score[near] += _TOKENS_WEIGHT * low
            score[near] += [_WORDS_WEIGHT * shared[row] for row in near.tolist()]
            best[:_RERANKED] = near[np.argsort(-score[near], kind="stable")]
        found = []
        for row in best.tolist():
            similarity = None if similarities is None else float(similarities[row])
            passage, sentence = self.rows[row]
            found.append(Found(passage, sentence, similarity, interactions.get(row), shared[row]))
        return found

    @staticmethod
    def answers(found: Sequence[Found]) -> bool:
        """Whether the first of the sentences that were found for a question answers it.

        It has to have each of the question's tokens, and the closest to stand out from the next
        five. Without an encoder shared words are compared.
        """
        close = [row.interaction for row in found if row.interaction is not None]
        least = _MIN_CLOSENESS
        if not close:
            shared = [row.shared for row in found[:_RERANKED]] + [0.0]
            close, least = list(zip(shared, shared, strict=True)), _MIN_SHARED
        largest = sorted((mean for _, mean in close), reverse=True)
        others = largest[1:6] or largest
        gap = largest[0] - sum(others) / len(others)
        lowest, _ = close[0]
        return lowest + _GAP_WEIGHT * gap >= least

    def _similarities(self, question: str) -> Array | None:
        """The similarity of each passage and sentence, or None without vectors."""
        if not self._vectors or self._encoder is None:
            return None
        query = self._encoder.encode([question], "query")[0]
        parts = [
            self._encoder.similarities(vectors[at : at + _ROWS_AT_ONCE], query)
            for vectors in self._vectors
            for at in range(0, len(vectors), _ROWS_AT_ONCE)
        ]
        similarities: Array = np.concatenate(parts)
        return np.where(np.isfinite(similarities), similarities, -1.0)


def _vectors(parts: Sequence[tuple[Datastore, list[Passage]]]) -> Iterator[Array]:
    for store, passages in parts:
        if store.vectors is not None and passages:
            yield store.vectors
