"""Decodes text token by token."""

from __future__ import annotations

from typing import Any


class Pieces:
    """Tells the text that each token adds to a text that grows.

    If a character is cut into several tokens, the last of them adds it.

    Args:
        tokenizer: Turns tokens into text.
        before: The tokens of the prompt.
    """

    def __init__(self, tokenizer: Any, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = before[-8:]
        self._first = 0
        self._seen = len(self._ids)

    def add(self, token: int) -> str:
        """Returns the text that one more token adds to the tokens before it."""
        self._ids.append(token)
        before = self._text(self._ids[self._first : self._seen])
        after = self._text(self._ids[self._first :])
        if after.endswith("\ufffd"):
            return ""
        self._first, self._seen = self._seen, len(self._ids)
        return after[len(before) :]

    def _text(self, ids: list[int]) -> str:
        return str(
            self._tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
