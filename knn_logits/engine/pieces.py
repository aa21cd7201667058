"""Decodes text token by token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from typing import Any

from knn_logits.engine.tokens import special_ids

# Some tokenizers decode a token by the tokens before it. This number is enough, if the first of
# them begins a character: Llama's tokenizer has a token for each byte of a rare character, and
# decodes a row of these to nothing but U+FFFD if the row does not begin with a whole one.
_CONTEXT = 8
_CUT = "\ufffd"
# The text in place of a special token, which ends a paragraph.
_GAP = "\n\n"
# Number of tokens from which a text that says U+FFFD has it.
_MOST_WAITING = 4 * _CONTEXT
# Where more tokens at an end say U+FFFD, the text itself has it.
_LONGEST_CUT = 128
# How many tokens may be left out at each end until no character is cut, the fewest first.
_CUTS = sorted(product(range(4), range(4)), key=sum)


class Pieces:
    """Tells the text that each token adds to a text that grows.

    If a character is cut into several tokens, the last of them adds it.

    Args:
        tokenizer: Turns tokens into text.
        before: The tokens of the prompt.
    """

    def __init__(self, tokenizer: Any, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = _last(tokenizer, before)
        self._reported = len(self._ids)
        self._done: str | None = None

    def add(self, token: int) -> str:
        """Returns the text that one more token adds to the tokens before it."""
        done = self._text_before()
        self._ids.append(token)
        text = decoded(self._tokenizer, self._ids)
        if text.endswith(_CUT) and len(self._ids) - self._reported < _MOST_WAITING:
            return ""
        return self._added(done, text)

    def rest(self) -> str:
        """Returns the text of tokens that wait for the rest of a character, and ends the text."""
        if self._reported == len(self._ids):
            return ""
        return self._added(self._text_before(), decoded(self._tokenizer, self._ids))

    def _added(self, done: str, text: str) -> str:
        if not text.startswith(done):
            # Bytes that are no character have taken those before them along.
            del self._ids[: self._reported]
            done, text = "", decoded(self._tokenizer, self._ids)
        self._done, self._reported = text, len(self._ids)
        # Decoding takes most of the time, so the first tokens are dropped several at a time.
        if len(self._ids) > 2 * _CONTEXT and not text.endswith(_CUT):
            first, self._done = _shortened(self._tokenizer, self._ids, text)
            del self._ids[:first]
            self._reported = len(self._ids)
        return text[len(done) :]

    def add_all(self, tokens: Sequence[int]) -> str:
        """Returns the text that some more tokens add. It decodes them once, and ends the text."""
        done, ids = self._text_before(), [*self._ids, *tokens]
        text = _whole(self._tokenizer, ids, len(ids))
        if not text.startswith(done):
            done, ids = "", ids[self._reported :]
            text = _whole(self._tokenizer, ids, len(ids))
        return text[len(done) :]

    def _text_before(self) -> str:
        if self._done is None:
            self._done = _whole(self._tokenizer, self._ids, len(self._ids))
        return self._done


class TextAfter:
    """Tells the text that a token adds to a text, for many tokens that might follow it."""

    def __init__(self, tokenizer: Any, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = _last(tokenizer, before)
        self._before: str | None = None

    def __call__(self, token: int) -> str:
        """Returns the text that a token adds. A character that is cut before it belongs to it."""
        if self._before is None:
            self._before = _whole(self._tokenizer, self._ids, len(self._ids))
        return decoded(self._tokenizer, [*self._ids, token])[len(self._before) :]


class InnerText:
    """Tells the text of some tokens as it is within a longer text. Special tokens are a gap."""

    def __init__(self, tokenizer: Any, ids: Sequence[int]) -> None:
        self._tokenizer, self._special = tokenizer, special_ids(tokenizer)
        words = (
            token for token in dict.fromkeys(ids) if decoded(tokenizer, [token]).strip().isalpha()
        )
        self._behind = list(islice(words, 1))
        self._known: dict[int, str] = {}

    def parts(self, ids: Sequence[int]) -> list[str]:
        """Returns the text that each of some tokens adds, as `token_texts` does."""
        for token in set(ids) - self._known.keys():
            self._known[token] = self._texts([token])[0]
        texts = [self._known[token] for token in ids]
        if any(_CUT in text for text in texts) or not self._behind:
            texts = self._texts(ids)
        special = (token in self._special for token in ids)
        return [_GAP if gap else text for gap, text in zip(special, texts, strict=True)]

    def _texts(self, ids: Sequence[int]) -> list[str]:
        return token_texts(self._tokenizer, [*self._behind, *ids])[len(self._behind) :]


def parts_of(tokenizer: Any, ids: Sequence[int], cuts: Sequence[int]) -> list[str]:
    """Cuts the text of some tokens in parts. A character that is cut belongs to the later part."""
    text = decoded(tokenizer, ids)
    if text.endswith(_CUT):
        whole = _whole(tokenizer, ids, len(ids))
        if not text.startswith(whole):
            # The bytes of a character that is cut at the end have taken those before them along.
            text = whole + _CUT
    ends = [len(text) if cut >= len(ids) else len(_whole(tokenizer, ids, cut)) for cut in cuts]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True)]


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Returns the text that each token adds to the tokens before it."""
    pieces = Pieces(tokenizer, [])
    texts = [pieces.add(token) for token in ids]
    if texts and not texts[-1]:
        texts[-1] = pieces.rest()
    return texts


def whole_characters(
    tokenizer: Any, ids: Sequence[int], before: int, after: int
) -> tuple[int, int]:
    """Finds the longest part of some tokens that begins and ends with a whole character."""
    for first, last in _CUTS:
        if first > before or last > after:
            continue
        text = decoded(tokenizer, ids[first : len(ids) - last])
        if not text.startswith(_CUT) and not text.endswith(_CUT):
            return first, len(ids) - last
    return 0, len(ids)


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Returns the text of some tokens, special tokens included, as it is."""
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )


def _whole(tokenizer: Any, ids: Sequence[int], end: int) -> str:
    """Returns the text of the tokens up to a place, without a character that is cut there."""
    whole = text = decoded(tokenizer, ids[:end])
    least = max(0, end - _LONGEST_CUT)
    while end > least and text.endswith(_CUT):
        end -= 1
        text = decoded(tokenizer, ids[:end])
    return whole if end and text.endswith(_CUT) else text


def _last(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Returns some of the last tokens of a text. If possible, the first begins a character."""
    for count in range(_CONTEXT, 2 * _CONTEXT):
        last = list(ids[-count:])
        whole = _whole(tokenizer, last, len(last))
        if whole and not whole.startswith(_CUT):
            return last
    return list(ids[-_CONTEXT:])


def _shortened(tokenizer: Any, ids: Sequence[int], text: str) -> tuple[int, str]:
    """Finds how many of the first tokens may be left out of a text, and what the rest says."""
    for first in range(len(ids) - _CONTEXT // 2, 0, -1):
        rest = decoded(tokenizer, ids[first:])
        if rest and text.endswith(rest):
            return first, rest
    return 0, text
