"""Takes a message apart: greetings, its questions, what is before them; and writes the prompt."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from knn_logits.arrays import Array
from knn_logits.ask.answer import DECLINED
from knn_logits.engine.encoder import Encoder
from knn_logits.engine.passages import QUESTION_MARKS, Passage, language_of, sentences_of
from knn_logits.engine.tokens import chat_ids, text_ids
from knn_logits.errors import ConfigError

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
# Two questions that "and" joins.
_ASKING = r"(?:who|whom|whose|what|when|where|which|why|how) \S+ \S"
_JOINED = re.compile(rf"(?is)({_ASKING}.*?),? and ({_ASKING}.*)")
_TASK = f"Answer from the text above, briefly. If it does not say, write: {DECLINED.capitalize()}."


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
    sentences = sentences_of(message, language_of(message))
    sentences = [part for part in sentences if any(map(str.isalnum, part))]
    pairs = [(part, _JOINED.fullmatch(part)) for part in sentences]
    sentences = [
        half
        for part, pair in pairs
        for half in ([f"{pair[1]}?", f"{pair[2].rstrip('?')}?"] if pair else [part])
    ]
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


def readings_of(question: str, before: str, history: Sequence[Message]) -> list[tuple[str, str]]:
    """A question alone, with the sentences before it, and beside the last for its meaning."""
    asked = [message["content"] for message in history if message["role"] == "user"]
    said = [(f"{before} {question}", "")] * bool(before)
    return [(question, ""), *said, *((question, last) for last in asked[-1:])]


def reading_of(passage: Passage) -> str:
    """A passage as the model reads it, with its title and headings."""
    return f"{': '.join(dict.fromkeys([passage.title, *passage.headings]))}\n{passage.text}"


def chat_prompt(
    tokenizer: Any, question: str, passages: Sequence[str], history: Sequence[Message] = ()
) -> list[int]:
    """The ids of a prompt: history, passages, question; plain text without a chat template."""
    asked = [*passages, f"{_TASK}\n{question}"] if passages else [question]
    text = "\n\n".join(asked)
    if getattr(tokenizer, "chat_template", None):
        messages = [*history, {"role": "user", "content": text}]
        return chat_ids(tokenizer, messages, add_generation_prompt=True)
    before = "".join(f"{message['content']}\n\n" for message in history)
    return text_ids(tokenizer, f"{before}{text}\nAnswer:")


def fitting(
    tokenizer: Any,
    question: str,
    passages: Sequence[Passage],
    history: Sequence[Message],
    room: int | None,
) -> tuple[list[int], list[Passage], list[Message]]:
    """Leaves out what the model has no room for: old messages first, then the last passages.

    Returns the ids of the prompt, and the passages and messages in it. A question that is too long
    raises `ConfigError`.
    """
    read, said = list(passages), list(history)

    def prompt_without(turns: int) -> list[int]:
        return chat_prompt(tokenizer, question, [*map(reading_of, read)], said[2 * turns :])

    most = sys.maxsize if room is None else room
    # A stranger's chat may have thousands of turns, so that they are not tried one by one.
    turns = range((len(said) + 1) // 2)
    said = said[2 * bisect_left(turns, True, key=lambda left: len(prompt_without(left)) <= most) :]
    while len(ids := prompt_without(0)) > most:
        if not read:
            raise ConfigError(
                f"the question has {len(ids)} tokens, and only {room} fit next to the answer: "
                "shorten the question"
            )
        read.pop()
    return ids, read, said
