"""What is told of a text while it is written: tokens with their text, up to where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from knn_logits import SequenceTrace


@dataclass(frozen=True)
class Token:
    """A token of an answer.

    Attributes:
        text: What it adds to the text before it.
        logprob: Its log-probability in the mixture, where it was asked for.
        likeliest: The likeliest tokens in its place and their log-probabilities.
    """

    text: str
    logprob: float | None = None
    likeliest: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """More of an answer.

    Attributes:
        choice: Number of the answer.
        text: The text; it may end within the last token.
        tokens: Its tokens.
    """

    choice: int
    text: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class End:
    """An answer is whole.

    Attributes:
        choice: Number of the answer.
        reason: "stop" where the model or the request ended it, "length" where a limit did.
        tokens: Tokens that were written for it.
        text: The answer, without its prompt.
        trace: Where its words come from; None without kNN.
        offset: Characters of the prompt that stand before it in what the client gets.
    """

    choice: int
    reason: str
    tokens: int
    text: str
    trace: SequenceTrace | None = None
    offset: int = 0


class Ending:
    """Holds a text back as long as it may be the beginning of what the text has to end before.

    Args:
        stops: Texts before which it ends.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held: list[Token] = []
        self._ended = False

    def add(self, token: Token) -> tuple[str, tuple[Token, ...]]:
        """Takes a token, and gives the text and tokens that are certain by now."""
        self._held.append(token)
        text = "".join(one.text for one in self._held)
        found = min((at for one in self._stops if (at := text.find(one)) >= 0), default=None)
        if found is not None:
            self._ended = True
            return self._before(text, found)
        held = max((_overlap(text, one) for one in self._stops), default=0)
        return self._whole(len(text) - held)

    def over(self) -> bool:
        """Whether the text has come to where it ends."""
        return self._ended

    def rest(self) -> tuple[str, tuple[Token, ...]]:
        """What was held back, where nothing follows."""
        return self._whole(sum(len(one.text) for one in self._held))

    def _whole(self, length: int) -> tuple[str, tuple[Token, ...]]:
        """The tokens that lie within so much of the text."""
        ready, used = 0, 0
        for token in self._held:
            if used + len(token.text) > length:
                break
            used += len(token.text)
            ready += 1
        given, self._held = self._held[:ready], self._held[ready:]
        return "".join(one.text for one in given), tuple(given)

    def _before(self, text: str, length: int) -> tuple[str, tuple[Token, ...]]:
        """The text up to a place, and the tokens that begin before it."""
        given, used = [], 0
        for token in self._held:
            if used >= length:
                break
            given.append(token)
            used += len(token.text)
        self._held = []
        return text[:length], tuple(given)


def _overlap(text: str, stop: str) -> int:
    """How much of a text's end is the beginning of another one."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)
