"""Turns a chat into what a model continues, by the tokenizer's chat template or by a plain one.

A model without a chat template was never trained to chat. It continues a text, and its datastore
contains texts but no chats. So the plain template adds no names of speakers, which would move the
model away from the passages. Each message of the user begins a paragraph, which the model
continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from knn_logits import ConfigError, chat_ids
from knn_logits_serve.bodies import Message
from knn_logits_serve.refusals import Refusal

PLAIN_LINE = (
    "the tokenizer has no chat template, so the model continues the last message of a chat as "
    "plain text: give a template with --chat-template"
)


class Chat:
    """Turns messages into the text, or the tokens, that a model continues.

    Attributes:
        plain: Whether the plain template is used.
    """

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.plain = template is None and not getattr(tokenizer, "chat_template", None)
        if template is not None:
            try:
                self.given([Message(role="user", content="a")])
            except Refusal as error:
                raise ConfigError(f"the chat template cannot be used: {error}") from error

    def given(self, messages: Sequence[Message]) -> str | list[int]:
        """Returns what the model continues: the tokens of a template, or a plain text."""
        if not any(message.text.strip() for message in messages):
            raise Refusal("the messages have no text: write something first", param="messages")
        if self.plain:
            return plain_text(messages)
        turns = [{"role": _role(message.role), "content": message.text} for message in messages]
        try:
            return chat_ids(
                self._tokenizer,
                turns,
                chat_template=self._template,
                add_generation_prompt=messages[-1].role != "assistant",
                continue_final_message=messages[-1].role == "assistant",
            )
        except Exception as error:  # A template can raise any error, with any message.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Refusal(
                f"the chat template does not accept these messages ({reason}): change them",
                param="messages",
            ) from error


def plain_text(messages: Sequence[Message]) -> str:
    """Makes a paragraph of each message. An answer continues the message before it."""
    text = ""
    for message in messages:
        content = message.text
        if not content.strip():
            continue
        if message.role == "assistant":
            joined = not text or text[-1].isspace() or content[0].isspace()
            text += content if joined else f" {content}"
        else:
            text += f"\n\n{content}" if text else content
    return text


def _role(role: str) -> str:
    """Returns the role for a template. Templates know "developer" by its older name, "system"."""
    return "system" if role == "developer" else role
