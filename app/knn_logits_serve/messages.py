"""The messages of a chat, and the text that a model continues.

A model without a chat template was never trained to chat. It continues a text, and its datastore
contains texts but no chats. So the plain template adds no names of speakers, which would move the
model away from the passages. Each message of the user begins a paragraph, which the model
continues.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from knn_logits import text_ids
from knn_logits.hosting import chat_ids
from knn_logits_serve.bodies import Message, Refusal

# This invisible sign marks the notes of the server in an answer. So they can be removed when the
# chat is sent back: a model would write similar ones.
SIGN = "\u2060"
NOTE = f"\n\n{SIGN}("


def turns_of(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Returns the turns that a template shows, which knows "developer" by its older name."""
    roles = {"developer": "system"}
    return [
        {
            "role": roles.get(message.role, message.role),
            "content": message.text.partition(NOTE)[0]
            if message.role == "assistant"
            else message.text,
        }
        for message in messages
    ]


def ordered(messages: Sequence[Message]) -> list[Message]:
    """Moves system messages after the last message of the user before it, which they are about."""
    end = len(messages)
    while end and messages[end - 1].role in ("system", "developer"):
        end -= 1
    if not end or messages[end - 1].role == "assistant":
        return list(messages)
    return [*messages[: end - 1], *messages[end:], messages[end - 1]]


def _strict(turns: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Returns turns for a template without "system", or with users and assistants by turns only."""
    strict: list[dict[str, str]] = []
    for turn in turns:
        role = "user" if turn["role"] == "system" else turn["role"]
        if strict and strict[-1]["role"] == role:
            strict[-1] = {"role": role, "content": f"{strict[-1]['content']}\n\n{turn['content']}"}
        elif strict or role == "user":
            strict.append({"role": role, "content": turn["content"]})
    return strict


class Chat:
    """Turns messages into the text, or the tokens, that a model continues."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Whether the plain template is used.
        self.plain = not getattr(tokenizer, "chat_template", None)

    def prompt(self, messages: Sequence[Message], room: int | None = None) -> str | list[int]:
        """Returns what the model continues: the tokens of a template, or a plain text.

        The oldest turns are left out as far as all have more than `room` tokens. The system
        messages at the beginning and the last turn of the user stay.
        """
        if not any(message.text.strip() for message in messages):
            raise Refusal("the messages have no text: write something first", param="messages")
        turns = turns_of(messages)
        whole = self._read(turns)
        first = next((at for at, turn in enumerate(turns) if turn["role"] != "system"), 0)
        later = [at for at in range(first + 1, len(turns)) if turns[at]["role"] == "user"]
        if room is None or not later or self._size(whole) <= room:
            return whole

        def from_turn(at: int) -> str | list[int]:
            return self._read([*turns[:first], *turns[at:]])

        fitting = bisect_left(later, True, key=lambda at: self._size(from_turn(at)) <= room)
        return from_turn(later[min(fitting, len(later) - 1)])

    def history(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        """Returns the turns before a question, as far as the template accepts them."""
        turns = turns_of(messages)
        try:
            self._cut([*turns, {"role": "user", "content": "a"}])
            return turns
        except Exception:  # A template can raise any error.
            turns = _strict(turns)
            return turns[:-1] if turns and turns[-1]["role"] == "user" else turns

    def _size(self, prompt: str | list[int]) -> int:
        return len(text_ids(self._tokenizer, prompt) if isinstance(prompt, str) else prompt)

    def _read(self, turns: Sequence[dict[str, str]]) -> str | list[int]:
        try:
            return self._cut(turns)
        except Exception as error:  # A template can raise any error, with any message.
            try:
                return self._cut(_strict(turns))
            except Exception:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise Refusal(
                    f"the chat template does not accept these messages ({reason}): change them",
                    param="messages",
                ) from error

    def _cut(self, turns: Sequence[dict[str, str]]) -> str | list[int]:
        if self.plain:
            return plain_text(turns)
        answered = bool(turns) and turns[-1]["role"] == "assistant"
        return chat_ids(
            self._tokenizer,
            turns,
            add_generation_prompt=not answered,
            continue_final_message=answered,
        )


def plain_text(turns: Sequence[dict[str, str]]) -> str:
    """Makes a paragraph of each turn. An answer continues the turn before it."""
    text = ""
    for turn in turns:
        content = turn["content"]
        if not content.strip():
            continue
        if turn["role"] == "assistant":
            joined = not text or text[-1].isspace() or content[0].isspace()
            text += content if joined else f" {content}"
        else:
            text += f"\n\n{content}" if text else content
    return text
