"""Writes the prompt: the passages, then the question, in the model's own chat template."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from knn_logits.ask.answer import NO_ANSWER
from knn_logits.ask.messages import Message
from knn_logits.engine.passages import Passage
from knn_logits.engine.tokens import chat_ids, text_ids
from knn_logits.errors import ConfigError

_TASK = f"Answer from the text above, briefly. If it does not say, write: {NO_ANSWER}"


def reading_of(passage: Passage) -> str:
    """A passage as the model reads it, with its title and headings."""
    return f"{': '.join(dict.fromkeys([passage.title, *passage.headings]))}\n{passage.text}"


def chat_prompt(
    tokenizer: Any, question: str, passages: Sequence[str], history: Sequence[Message] = ()
) -> list[int]:
    """Cuts a question with the passages that are read into tokens.

    Args:
        tokenizer: The model's tokenizer. Without a chat template the text is continued.
        question: The question.
        passages: The texts to read, in the order in which they stand.
        history: The messages before, each with a `role` and a `content`.

    Returns:
        The ids.
    """
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

    Returns:
        The ids of the prompt, and the passages and messages in it.

    Raises:
        ConfigError: when the question alone is too long.
    """
    read, said = list(passages), list(history)

    def too_long(turns: int) -> bool:
        ids = chat_prompt(tokenizer, question, [*map(reading_of, read)], said[2 * turns :])
        return room is not None and len(ids) > room

    # A stranger's chat may have thousands of turns, so that they are not tried one by one.
    turns = range((len(said) + 1) // 2)
    said = said[2 * bisect_left(turns, True, key=lambda left_out: not too_long(left_out)) :]
    while True:
        ids = chat_prompt(tokenizer, question, [*map(reading_of, read)], said)
        if room is None or len(ids) <= room:
            return ids, read, said
        if not read:
            raise ConfigError(
                f"the question has {len(ids)} tokens, and only {room} fit next to the answer: "
                "shorten the question"
            )
        read.pop()
