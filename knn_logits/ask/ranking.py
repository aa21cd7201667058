"""Ranks the sentences of documents by their meaning and by the words that they share.

The score is the similarity of the encoder's vectors plus a share of BM25, divided by its maximum:
Robertson and Zaragoza (2009), "The Probabilistic Relevance Framework: BM25 and Beyond". The best
sentences are compared with the question once more, token by token.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from knn_logits.arrays import Array
from knn_logits.engine.encoder import Encoder
from knn_logits.engine.passages import Passage, Sentence, bm25s, read_passages, words_of
from knn_logits.engine.reader import reader_of
from knn_logits.store.datastore import Datastore

logger = logging.getLogger(__name__)

# The weight of BM25 beside the similarity: of 0.2 to 0.7 about the best on XQuAD. The share of the
# question's words has the same weight among the sentences that are compared token by token.
_WORDS_WEIGHT = 0.25
# The number of sentences that are compared token by token and by the reader, and the weights of
# both comparisons: of 0.3 to 10, and of 0.02 to 2, about the best on XQuAD and NQ-open.
_RERANKED, _TOKENS_WEIGHT, _ODDS_WEIGHT = 10, 2.7, 0.3
# By how much the score of a sentence beside the best may be less, so that it is quoted too.
_NEARLY = 0.2
# Weights of the gap and of the reader's log-odds for an answer, and the sum that it needs: with a
# reader, with an encoder alone, and by shared words. Chosen on CLAP NQ, XQuAD with and without the
# paragraph that answers, and SQuAD 2.0: 80% of the answerable pass, 82% and 60% without a reader.
_WITH_READER, _WITH_ENCODER, _BY_WORDS = (1.5, 0.1, 0.67), (2.25, 0.0, 0.73), (2.25, 0.0, 0.69)
# Minimum soft minimum with a follow-up alone, for a sentence that lacks some of its words.
_MIN_ALONE = 0.2
_STALE = "sentences end elsewhere than when they were encoded: build the datastore again"


class Closeness(NamedTuple):
    """How close a sentence is to a question: see `Encoder.late_interaction`, or by its words."""

    lowest: float  # the soft minimum, or the words' share
    mean: float
    log_odds: float | None  # that it answers the question: see `Reader.log_odds`


@dataclass(frozen=True)
class Found:
    """A sentence that fits a question.

    Attributes:
        passage: Its passage.
        sentence: The sentence.
        similarity: See `Encoder.similarities`; None without an encoder.
        closeness: None beyond the best.
        quote: The sentence, with those around it that are quoted too.
    """

    passage: Passage
    sentence: Sentence
    similarity: float | None
    closeness: Closeness | None
    quote: str


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
        kept = [store.vectors for store, read in parts if read and encoder]
        self._vectors = [vectors for vectors in kept if vectors is not None]
        if sum(map(len, self._vectors)) != len(self.rows):
            if self._vectors:
                logger.warning("questions are answered by words alone: %s", _STALE)
            self._vectors = []
        self._encoder = encoder if self._vectors else None
        self._reader = reader_of(self._encoder) if self._encoder else None

    def idf(self, word: str) -> float:
        """ln(1 + (N - n + 1/2) / (n + 1/2)) for a word of n sentences of N, at least of one."""
        count, total = max(1, self._counts[word]), len(self.rows)
        return math.log(1 + (total - count + 0.5) / (count + 0.5))

    def content_words(self, text: str) -> list[str]:
        """The words of a text that say what it is about, as the documents' languages have them."""
        words = (words_of(text, code, common=False) for code in self._languages)
        return list(dict.fromkeys(word for row in words for word in row))

    def rank(
        self, question: str, number: int, hidden: Collection[int] = (), after: str = ""
    ) -> list[Found]:
        """Finds the sentences that fit a question `after` another best, but for hidden rows."""
        asked, whole = self.content_words(question), f"{after} {question}" if after else question
        words = [word for word in self.content_words(whole) if self._counts[word]]
        score: Array = np.zeros(len(self.rows), np.float32)
        if words and self._index is not None:
            score += self._index.get_scores(words)
            score /= max(float(score.max()), 1e-9)
        shown = np.ones(len(self.rows), bool)
        shown[list(hidden)] = False
        similarities = self._similarities(whole)
        if similarities is None:
            shown &= score > 0
        else:
            score = similarities + _WORDS_WEIGHT * score
        score[~shown] = -np.inf
        best = np.argsort(-score, kind="stable")[: min(number, int(shown.sum()))]
        near = best[:_RERANKED].tolist()
        start = len(whole) - len(question)
        compared = self._compared(whole, start, near, asked, score)
        best[: len(near)] = sorted(near, key=lambda row: -score[row])
        found = []
        for row in best.tolist():
            similarity = None if similarities is None else float(similarities[row])
            passage, sentence = self.rows[row]
            closeness, quote = compared.get(row), sentence.text
            alike = {one for one in near if self._encoder and score[one] >= score[row] - _NEARLY}
            named = set(asked).intersection(words_of(sentence.before, passage.language))
            if sentence.before and (row - 1 in alike or not named <= self._words[row]):
                quote = passage.joined(sentence.before, quote)
            if row + 1 in alike and self.rows[row + 1][1].before == sentence.text:
                quote = passage.joined(quote, self.rows[row + 1][1].text)
            found.append(Found(passage, sentence, similarity, closeness, quote))
        return found

    def _shared(self, words: Collection[str], asked: Collection[str]) -> float:
        """The share of a question's words that are among others, by idf."""
        idfs = {word: self.idf(word) for word in asked}
        return sum(idf for word, idf in idfs.items() if word in words) / (sum(idfs.values()) or 1.0)

    def _compared(
        self, question: str, start: int, rows: Sequence[int], asked: Sequence[str], score: Array
    ) -> dict[int, Closeness]:
        """Compares sentences with a question's tokens from `start`, and adds to their scores."""
        if self._encoder is None or not rows:
            shares = {row: self._shared(self._words[row], asked) for row in rows}
            return {row: Closeness(share, share, None) for row, share in shares.items()}
        read = {row: self.rows[row] for row in rows}
        texts = [passage.below(sentence) for passage, sentence in read.values()]
        odds: list[float | None] = [None] * len(rows)
        if self._reader is not None:
            longer = [passage.in_context(sentence) for passage, sentence in read.values()]
            odds = self._reader.log_odds(question, longer).tolist()
        lowest, means = self._encoder.late_interaction(texts, question, start=start)
        columns = (lowest.tolist(), means.tolist(), odds)
        found = {row: Closeness(*one) for row, *one in zip(rows, *columns, strict=True)}
        for row, (passage, sentence) in read.items():
            words = self._words[row].union(words_of(sentence.before, passage.language))
            shared = self._shared(self._words[row], asked) + self._shared(words, asked)
            score[row] += _TOKENS_WEIGHT * found[row].lowest + _WORDS_WEIGHT * shared / 2
            score[row] += _ODDS_WEIGHT * (found[row].log_odds or 0.0)
        if start and asked:
            lowest, _ = self._encoder.late_interaction(texts, question[start:])
            for row, low in zip(rows, lowest.tolist(), strict=True):
                if low < _MIN_ALONE and not self._words[row].issuperset(asked):
                    score[row] -= _TOKENS_WEIGHT
                    found[row] = found[row]._replace(lowest=-math.inf)
        return found

    @staticmethod
    def margin(found: Sequence[Found]) -> float:
        """By how much the first of the sentences that were found exceeds what an answer needs.

        It has to have each of the question's tokens, the reader has to take it for an answer, and
        the closest has to stand out from the next five. Below 0 it is no answer.
        """
        close = [row.closeness for row in found if row.closeness] or [Closeness(0.0, 0.0, None)]
        lowest, _, odds = close[0]
        values, weights = [one.mean for one in close], _WITH_READER
        if not found or found[0].similarity is None:
            values, weights = [*values, 0.0], _BY_WORDS
        elif odds is None:
            weights = _WITH_ENCODER
        gap_weight, odds_weight, least = weights
        largest, *others = sorted(values, reverse=True)[:6]
        gap = largest - sum(others or [largest]) / max(1, len(others))
        return lowest + gap_weight * gap + odds_weight * (odds or 0.0) - least

    def _similarities(self, question: str) -> Array | None:
        """The similarity of each passage and sentence, or None without vectors."""
        if self._encoder is None:
            return None
        query = self._encoder.encode([question], "query")[0]
        parts = [self._encoder.similarities(vectors, query) for vectors in self._vectors]
        similarities: Array = np.concatenate(parts)
        return np.where(np.isfinite(similarities), similarities, -1.0)
