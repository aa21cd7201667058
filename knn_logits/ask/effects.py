"""Names the passage that has the words of a written answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from knn_logits.ask.ranking import Ranking
from knn_logits.evidence.sources import PUNCTUATION

_ENDS_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*\s*$|[。\uff01\uff1f]\s*$")


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
