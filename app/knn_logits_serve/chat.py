"""A chat as one text: by the tokenizer's own template, or by a plain one for a model without.

A model without a template was never trained to chat. It goes on with a text, and its datastore
knows texts and no chats: so the plain template adds no names of speakers, which would move the
model away from the passages. Each message of the user begins a paragraph, which the model goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from knn_logits import ConfigError
from knn_logits_serve.bodies import Message
from knn_logits_serve.refusals import Refusal

PLAIN_LINE = (
    "the tokenizer has no chat template: a chat becomes plain text, whose last message the model "
    "goes on with; --chat-template gives it one"
)


class Chat:
    """Turns messages into the text that a model goes on from.

    Args:
        tokenizer: The model's tokenizer.
        template: A template in Jinja's language, in place of the tokenizer's.

    Attributes:
        plain: Whether there is no template but the plain one.

    Raises:
        ConfigError: when the given template is none.
    """

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.plain = template is None and not getattr(tokenizer, "chat_template", None)
        if template is not None:
            try:
                self.text([Message(role="user", content="a")])
            except Refusal as error:
                raise ConfigError(f"the chat template cannot be used: {error}") from error

    def text(self, messages: Sequence[Message]) -> str:
        """The text that the model goes on from.

        Raises:
            Refusal: when the template does not take these messages, or they say nothing.
        """
        if not any(message.text.strip() for message in messages):
            raise Refusal("the messages hold no text: write something first", param="messages")
        if self.plain:
            return plain_text(messages)
        turns = [{"role": _role(one.role), "content": one.text} for one in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                turns,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=messages[-1].role != "assistant",
                continue_final_message=messages[-1].role == "assistant",
            )
        except Exception as error:  # whatever a template raises, in Jinja's or its own words
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Refusal(
                f"the chat template does not take these messages: {reason}", param="messages"
            ) from error
        return str(text)


def plain_text(messages: Sequence[Message]) -> str:
    """Messages as paragraphs; an answer goes on with the message before it."""
    text = ""
    for message in messages:
        said = message.text
        if not said.strip():
            continue
        if message.role == "assistant":
            joined = not text or text[-1].isspace() or said[0].isspace()
            text += said if joined else f" {said}"
        else:
            text += f"\n\n{said}" if text else said
    return text


def _role(role: str) -> str:
    """Templates know the developer by his older name."""
    return "system" if role == "developer" else role
