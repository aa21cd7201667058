"""The parts of an answer that are passed on while it is written, up to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from knn_logits import SequenceTrace


@dataclass(frozen=True)
class Token:
    """A token of an answer.

    Attributes:
        text: The text that the token adds.
        logprob: Its log-probability in the mixture, if the request wants it.
        likeliest: The likeliest tokens in its place with their log-probabilities.
    """

    text: str
    logprob: float | None = None
    likeliest: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """The next part of an answer.

    Attributes:
        choice: The number of the answer.
        text: The text, which may end within the last token.
        tokens: The tokens of the text.
    """

    choice: int
    text: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class End:
    """The end of an answer.

    Attributes:
        choice: The number of the answer.
        reason: "stop" if the model or a stop text ended it, "length" if a limit did.
        tokens: Number of tokens that were written.
        text: The whole answer, without its prompt.
        trace: The sources of the answer; None without kNN.
        offset: Number of characters of the prompt that the client gets before the answer.
    """

    choice: int
    reason: str
    tokens: int
    text: str
    trace: SequenceTrace | None = None
    offset: int = 0


class Ending:
    """Ends a text before a stop text, and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held: list[Token] = []
        self._ended = False

    def add(self, token: Token) -> tuple[str, tuple[Token, ...]]:
        """Takes a token, and returns the text and tokens that are certain now."""
        self._held.append(token)
        text = "".join(token.text for token in self._held)
        end = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if end is not None:
            self._ended = True
            return self._before(text, end)
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        return self._whole(len(text) - held)

    def over(self) -> bool:
        """Whether the text has reached a stop text."""
        return self._ended

    def rest(self) -> tuple[str, tuple[Token, ...]]:
        """Returns the text and tokens that were held back, once no token follows."""
        return self._whole(sum(len(token.text) for token in self._held))

    def _whole(self, length: int) -> tuple[str, tuple[Token, ...]]:
        """Returns the tokens that lie within the first `length` characters of the text."""
        ready, used = 0, 0
        for token in self._held:
            if used + len(token.text) > length:
                break
            used += len(token.text)
            ready += 1
        ready_tokens, self._held = self._held[:ready], self._held[ready:]
        return "".join(token.text for token in ready_tokens), tuple(ready_tokens)

    def _before(self, text: str, length: int) -> tuple[str, tuple[Token, ...]]:
        """Returns the first `length` characters, and the tokens that begin in them."""
        tokens, used = [], 0
        for token in self._held:
            if used >= length:
                break
            tokens.append(token)
            used += len(token.text)
        self._held = []
        return text[:length], tuple(tokens)


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the text's end are the beginning of the stop text."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)
