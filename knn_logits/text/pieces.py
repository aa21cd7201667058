"""Decodes text token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Some tokenizers decode a token by the tokens before it. So many of these are enough.
_CONTEXT = 8
_CUT = "\ufffd"


class Pieces:
    """Tells the text that each token adds to a text that grows.

    If a character is cut into several tokens, the last of them adds it.

    Args:
        tokenizer: Turns tokens into text.
        before: The tokens of the prompt.
    """

    def __init__(self, tokenizer: Any, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = before[-_CONTEXT:]
        self._done: str | None = None

    def add(self, token: int) -> str:
        """Returns the text that one more token adds to the tokens before it."""
        if self._done is None:
            self._done = decoded(self._tokenizer, self._ids)
        self._ids.append(token)
        text = decoded(self._tokenizer, self._ids)
        if text.endswith(_CUT):
            return ""
        added = text[len(self._done) :]
        self._done = text
        # Decoding takes most of the time, so the first tokens are dropped several at a time.
        if len(self._ids) > 2 * _CONTEXT:
            self._ids, self._done = self._ids[-_CONTEXT // 2 :], None
        return added

    def add_all(self, tokens: Sequence[int]) -> str:
        """Returns the text that some more tokens add. It decodes them once, and ends the text."""
        before = decoded(self._tokenizer, self._ids)
        ids = [*self._ids, *tokens]
        return _whole(self._tokenizer, ids, len(ids))[len(before) :]


class TextAfter:
    """Tells the text that a token adds to a text, for many tokens that might follow it.

    Args:
        tokenizer: Turns tokens into text.
        before: The tokens of the text.
    """

    def __init__(self, tokenizer: Any, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(before[-_CONTEXT:])
        self._before: str | None = None

    def __call__(self, token: int) -> str:
        """Returns the text that a token adds. A character that is cut before it belongs to it."""
        if self._before is None:
            self._before = _whole(self._tokenizer, self._ids, len(self._ids))
        return decoded(self._tokenizer, [*self._ids, token])[len(self._before) :]


def parts_of(tokenizer: Any, ids: Sequence[int], cuts: Sequence[int]) -> list[str]:
    """Cuts the text of some tokens in parts. A character that is cut belongs to the later part.

    Args:
        tokenizer: Turns tokens into text.
        ids: The tokens.
        cuts: The places to cut at, in ascending order, as numbers of tokens.

    Returns:
        One text more than there are cuts. Joined they are the text of all tokens.
    """
    text = decoded(tokenizer, ids)
    ends = [len(text) if cut >= len(ids) else len(_whole(tokenizer, ids, cut)) for cut in cuts]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True)]


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Returns the text that each token adds to the tokens before it.

    If a character is cut into several tokens, the last of them adds it. The texts joined are the
    text of all tokens.
    """
    texts, start, done = [], 0, ""
    for end in range(1, len(ids) + 1):
        text = decoded(tokenizer, ids[start:end])
        if text.endswith(_CUT) and end < len(ids) and end - start < 4 * _CONTEXT:
            texts.append("")
            continue
        texts.append(text[len(done) :])
        done = text
        if end - start > _CONTEXT and not text.endswith(_CUT):
            start = end - _CONTEXT // 2
            done = decoded(tokenizer, ids[start:end])
    return texts


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Returns the text of some tokens, special tokens included, as it is."""
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )


def _whole(tokenizer: Any, ids: Sequence[int], end: int) -> str:
    """Returns the text of the tokens up to a place, without a character that is cut there."""
    text = decoded(tokenizer, ids[:end])
    while end and text.endswith(_CUT):
        end -= 1
        text = decoded(tokenizer, ids[:end])
    return text
