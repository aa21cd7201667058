"""Names the passage that says a word: by the words that they share, and by how rare these are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from knn_logits.ask.ranking import content_words
from knn_logits.evidence.sources import PUNCTUATION

# So much of the score is that of the whole sentence and the question.
_AROUND = 0.1


def sources_of_words(
    words: Sequence[str],
    sentences: Sequence[int],
    question: str,
    passages: Sequence[str],
    idf: Callable[[str], float],
) -> list[int | None]:
    """Names for each word of an answer the passage that says it.

    Among the passages that have the word, it is the one that shares most with the word's sentence
    and the question.

    Args:
        words: The answer's words.
        sentences: The number of each word's sentence.
        question: The question.
        passages: The passages' texts.
        idf: How rare a word is.

    Returns:
        The number of a passage for each word; None where no passage has it.
    """
    holds = [set(content_words(text)) for text in passages]
    asked = set(content_words(question))
    spoken: dict[int, set[str]] = {}
    for word, sentence in zip(words, sentences, strict=True):
        spoken.setdefault(sentence, set()).update(content_words(word))

    def score(number: int, sentence: int) -> float:
        shared, around = spoken[sentence] & holds[number], asked & holds[number]
        return sum(map(idf, shared)) + _AROUND * sum(map(idf, around))

    names: list[int | None] = []
    for word, sentence in zip(words, sentences, strict=True):
        content = set(content_words(word.strip(PUNCTUATION)))
        holding = [number for number, held in enumerate(holds) if content and content <= held]
        names.append(max(holding, key=lambda number: score(number, sentence), default=None))
    return names
