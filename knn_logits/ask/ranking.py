"""Ranks passages by the words that they share with a question, by BM25.

Robertson and Zaragoza (2009), "The Probabilistic Relevance Framework: BM25 and Beyond".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.ask.languages import ENGLISH, bm25s, common_words, folded, language_of, stem
from knn_logits.ask.meanings import Alike, Meanings
from knn_logits.ask.passages import Passage

_WORD = re.compile(r"\w+(?:[./:'’_-]\w+)*")
_PART = re.compile(r"[^\W_]+")
# FM-3 and E529 name a single thing. What is said of another does not answer a question about it.
_CODE = re.compile(r"\b[A-Z]+(?:-\d|\d{3})[\w-]*")
# E42 may be another name, as T20 is. Where a passage has E41 in its place, it is a code.
_SHORT_CODE = re.compile(r"\b([A-Z]+)\d\d\b")
# Words of questions that say nothing of what they are about.
_ASKING = {"get", "many", "much", "often", "long", "far", "must", "should", "need"}
_ASKING |= {"say", "tell", "explain", "describe", "please", "kind"}
_STOP = common_words(ENGLISH) | _ASKING
# A question without words of its own, or with one of these, is about what was said before.
_REFERS = {"it", "its", "they", "them", "their", "he", "him", "his", "she", "her"}
_REFERS |= {"this", "that", "these", "those", "there", "one", "ones", "so", "then", "else"}
# So is one of few words that begins with one of these, such as "And in leather?".
_GOES_ON = {"also", "and", "but", "or", "und", "aber", "et", "mais", "y", "pero", "e", "ma", "maar"}
_GOES_ON |= {"och", "og", "what about", "how about"}
_FEW = 5
# A question that begins with one of these asks for yes or no.
_WHETHER = {"am", "are", "can", "could", "did", "do", "does", "had", "has", "have", "is", "may"}
_WHETHER |= {"might", "must", "shall", "should", "was", "were", "will", "would"}


def words_of(text: str, language: str = ENGLISH) -> list[str]:
    """The words of a text, folded and stemmed; K-3733 is one, and so are its parts."""
    words = []
    for match in _WORD.findall(folded(text)):
        parts = _PART.findall(match)
        words += [stem(part, language) for part in parts]
        if len(parts) > 1:
            words.append(match)
    return words


def content_words(text: str, language: str = ENGLISH) -> list[str]:
    """The words of a text that say what it is about."""
    common = _STOP if language == ENGLISH else common_words(language)
    return [stem(word, language) for word in _PART.findall(folded(text)) if word not in common]


@dataclass(frozen=True)
class Ranked:
    """A passage and how well it fits a question.

    Attributes:
        passage: The passage.
        score: Its BM25 score.
    """

    passage: Passage
    score: float


class Ranking:
    """An index of passages by their words."""

    def __init__(
        self,
        passages: Sequence[Passage],
        language: str = ENGLISH,
        meanings: Callable[[Sequence[str]], Meanings] | None = None,
    ) -> None:
        self.passages, self._language = list(passages), language
        texts = [
            words_of(f"{passage.named}\n{passage.text}", language) for passage in self.passages
        ]
        self._words = [frozenset(words) for words in texts]
        self._counts = Counter(word for words in self._words for word in words)
        letters = [word for word in self._counts if word.isalpha()]
        self._meanings = meanings(letters) if meanings else None
        self._index: Any = None
        if any(texts):
            self._index = bm25s.BM25()
            self._index.index(texts, show_progress=False)

    def idf(self, word: str) -> float:
        """ln(1 + (N - n + 1/2) / (n + 1/2)) for a word of n passages of N, at least of one."""
        count, total = max(1, self._counts[word]), len(self.passages)
        return math.log(1 + (total - count + 0.5) / (count + 0.5))

    def weight(self, question: str) -> float:
        """The idf of a question's words together."""
        return sum(map(self.idf, set(content_words(question, self._language))))

    def alike(self, question: str) -> Alike:
        """The words of passages that mean nearly what the words of a question do."""
        words = content_words(question, self._language)
        return self._meanings.alike(words) if self._meanings else {}

    def rank(
        self,
        question: str,
        number: int,
        hidden: Collection[int] = (),
        *,
        alike: Alike | None = None,
    ) -> list[Ranked]:
        """Finds the passages that fit a question best, the best first, but for hidden rows.

        Words that are like one of the question's count in part.
        """
        alike = alike or {}
        content = set(content_words(question, self._language))
        every = words_of(question, self._language)
        words = [word for word in every if word in content or not word.isalpha()]
        query = [word for word in dict.fromkeys(words or every) if self._counts[word]]
        if self._index is None or not (query or any(alike.values())) or number < 1:
            return []
        scores: Array = np.zeros(len(self.passages), np.float32)
        for word in dict.fromkeys([*query, *alike]):
            scores += self._scores(word, alike.get(word, {}))
        scores[list(hidden)] = 0.0
        best = np.argsort(-scores, kind="stable")[:number]
        return [
            Ranked(self.passages[row], float(scores[row]))
            for row in best.tolist()
            if scores[row] > 0
        ]

    def _scores(self, word: str, alike: Mapping[str, float]) -> Array:
        """What each passage scores for a word, or for the best of those that are like it."""
        parts = [
            weight * self._index.get_scores([other])
            for other, weight in {word: 1.0, **alike}.items()
            if self._counts[other]
        ]
        return np.max(parts, axis=0) if parts else np.zeros(len(self.passages), np.float32)


def refers_back(question: str) -> bool:
    """Whether a question says what it is about only together with those before it."""
    words = _PART.findall(folded(question))
    begins = {" ".join(words[:1]), " ".join(words[:2])}
    goes_on = len(words) <= _FEW and not _GOES_ON.isdisjoint(begins)
    own = content_words(question, language_of(question))
    return goes_on or not own or has_pronoun(question)


def with_earlier(question: str, history: Sequence[Mapping[str, str]]) -> str:
    """A question with the one before it, if it refers back."""
    before = [message["content"] for message in history if message["role"] == "user"]
    return f"{before[-1]} {question}" if before and refers_back(question) else question


def has_pronoun(question: str) -> bool:
    """Whether a word of a question stands for what was said before."""
    return not _REFERS.isdisjoint(_PART.findall(folded(question)))


def asks_whether(question: str) -> bool:
    """Whether yes or no answers a question, and no words of a sentence do."""
    return next(iter(_PART.findall(folded(question))), "") in _WHETHER


def offers_a_choice(question: str) -> bool:
    """Whether a question names the answers that it may have."""
    return "or" in _PART.findall(folded(question))


def codes_of(question: str) -> set[str]:
    """The codes that a question names, such as of a model or an error, as `squeezed` has them."""
    return set(map(squeezed, _CODE.findall(question)))


def names_codes(question: str, ranked: Sequence[Ranked]) -> bool:
    """Whether some passages name all codes of a question."""
    codes, short = codes_of(question), list(_SHORT_CODE.finditer(question))
    if not codes and not short:
        return True
    text = "\n".join(f"{row.passage.named}\n{row.passage.text}" for row in ranked)
    signs = squeezed(text)
    rivals = any(
        squeezed(code[0]) not in signs and re.search(rf"\b{code[1]}\d\d\b", text) for code in short
    )
    return not rivals and all(code in signs for code in codes)


def squeezed(text: str) -> str:
    """A text without what may stand inside a code: FM-3, FM 3 and FM3 are the same."""
    return "".join(_PART.findall(folded(text)))
