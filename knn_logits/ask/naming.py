"""Names the passage that says a word: by the words that they share, and by how rare these are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from knn_logits.ask.ranking import Ranking
from knn_logits.evidence.sources import PUNCTUATION

# The weights of what a passage shares with the word's clause, with its sentence and the question.
_CLAUSE, _SENTENCE, _QUESTION = 0.2, 0.1, 0.1
_ENDS_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*\s*$|[。\uff01\uff1f]\s*$")
_ENDS_CLAUSE = re.compile(r"[.,;:]\s*$")
_BEGINS_CLAUSE = frozenset({"while", "whereas", "and", "but"})


def sources_of_words(
    words: Sequence[str], question: str, passages: Sequence[str], ranking: Ranking
) -> list[int | None]:
    """Names for each word of an answer the passage that says it.

    Among the passages that have the word, the rule takes the passage that shares most with its
    clause, its sentence and the question, by idf. `docs/research/evidence.md` has measurements.

    Args:
        words: The answer's words.
        question: The question.
        passages: The passages' texts.
        ranking: Knows how rare a word is.

    Returns:
        The number of a passage for each word; None where no passage has it.
    """
    holds = [set(ranking.content_words(text)) for text in passages]
    clauses, sentences = (_content(words, group, ranking) for group in _groups(words))
    names: list[int | None] = []
    in_question = set(ranking.content_words(question))
    for word, clause, sentence in zip(words, clauses, sentences, strict=True):
        content = set(ranking.content_words(word.strip(PUNCTUATION)))
        around = ((_CLAUSE, clause), (_SENTENCE, sentence), (_QUESTION, in_question))
        scores = {
            number: sum(weight * sum(map(ranking.idf, part & held)) for weight, part in around)
            for number, held in enumerate(holds)
            if content and content <= held
        }
        names.append(max(scores, key=lambda number: scores[number], default=None))
    return names


def _groups(words: Sequence[str]) -> tuple[list[int], list[int]]:
    """The numbers of each word's clause and sentence."""
    clause = sentence = 0
    clauses, sentences = [], []
    for word in words:
        clause += word.strip().lower() in _BEGINS_CLAUSE
        clauses.append(clause)
        sentences.append(sentence)
        clause += bool(_ENDS_CLAUSE.search(word))
        sentence += bool(_ENDS_SENTENCE.search(word))
    return clauses, sentences


def _content(words: Sequence[str], groups: Sequence[int], ranking: Ranking) -> list[set[str]]:
    """For each word the content words of its group, whose words stand side by side."""
    contents: list[set[str]] = []
    for _, group in groupby(zip(words, groups, strict=True), lambda pair: pair[1]):
        texts = [word for word, _ in group]
        contents += [set(ranking.content_words(" ".join(texts)))] * len(texts)
    return contents
