"""Takes a message apart: greetings and thanks, its questions, and what is said before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from knn_logits.arrays import Array
from knn_logits.engine.encoder import Encoder
from knn_logits.engine.languages import language_of
from knn_logits.engine.passages import QUESTION_MARKS

Message = Mapping[str, str]
# A message has at most this number of questions. A longer one is not searched for greetings.
_MAX_QUESTIONS, _MAX_SENTENCES = 4, 8
# Courtesies and their replies. A sentence counts as a courtesy if they are similar.
_COURTESIES = {
    "Hello": "Hello. Ask a question about the documents.",
    "Good morning": "Hello. Ask a question about the documents.",
    "Hi, how are you?": "Hello. Ask a question about the documents.",
    "Thanks!": "You are welcome.",
    "Thank you very much": "You are welcome.",
    "Thanks a lot, that helps": "You are welcome.",
    "Bye!": "Goodbye.",
    "Goodbye, see you later": "Goodbye.",
}
_MIN_SIMILARITY = 0.69


def courtesy(text: str, encoder: Encoder | None) -> str | None:
    """The reply to a greeting or to thanks; None for anything else, and without an encoder."""
    if encoder is None or not text.strip():
        return None
    similarities = encoder.similarities(_courtesies(encoder), encoder.encode([text])[0])
    best = int(similarities.argmax())
    return list(_COURTESIES.values())[best] if similarities[best] >= _MIN_SIMILARITY else None


@lru_cache(maxsize=1)
def _courtesies(encoder: Encoder) -> Array:
    return encoder.encode([*_COURTESIES])


def questions_of(message: str, encoder: Encoder | None) -> list[tuple[str, str]]:
    """The questions of a message, each with what is said before it; none if it is a greeting."""
    import sentencex

    sentences = [part.strip() for part in sentencex.segment(language_of(message), message)]
    sentences = [part for part in sentences if any(map(str.isalnum, part))]
    if 1 < len(sentences) <= _MAX_SENTENCES:
        sentences = [part for part in sentences if courtesy(part, encoder) is None]
    asked: list[tuple[str, str]] = []
    before: list[str] = []
    for part in sentences:
        if part.endswith(QUESTION_MARKS) and len(asked) < _MAX_QUESTIONS:
            asked.append((part, " ".join(before)))
            before = []
        else:
            before.append(part)
    return asked or [(" ".join(before) or message.strip(), "")]


def readings_of(question: str, before: str, history: Sequence[Message]) -> list[str]:
    """Readings of a question: alone, after the sentences before it, or after the last question."""
    asked = [message["content"] for message in history if message["role"] == "user"]
    contexts = [before, *asked[-1:]]
    return [question, *(f"{context} {question}" for context in contexts if context.strip())]
