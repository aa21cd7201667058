"""Turns the tokens of one answer into what its client is told, while they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from knn_logits import Pieces, SequenceTrace
from knn_logits_app.session import renamed
from knn_logits_serve.decoding import Overheard
from knn_logits_serve.echoing import scored
from knn_logits_serve.parts import End, Ending, Piece, Token
from knn_logits_serve.request import GenerationRequest, Prompt
from knn_logits_serve.served import Served

Tell: TypeAlias = Callable[["Piece | End"], None]


class AnswerWriter:
    """One answer while it is written.

    Attributes:
        written: Number of tokens so far.
    """

    def __init__(
        self,
        served: Served,
        request: GenerationRequest,
        prompt: Prompt,
        choice: int,
        tell: Tell,
        overheard: Overheard | None = None,
    ) -> None:
        self._served, self._request, self._prompt = served, request, prompt
        self._choice, self._tell, self._overheard = choice, tell, overheard
        self._pieces = Pieces(served.tokenizer, prompt.ids)
        self._ending = Ending(request.stops)
        # Where nobody reads the text before its end, it is decoded once.
        self._is_late = not request.stream and not request.stops and overheard is None
        self._late: list[int] = []
        self._written: list[str] = []
        self._held: list[Piece] = []
        self.written = 0

    @property
    def over(self) -> bool:
        """Whether the text has reached a stop text."""
        return self._ending.over()

    def add(self, token: int) -> None:
        """Takes the next token. After the end of the text it is ignored."""
        if self.over:
            return  # The token was drafted together with earlier ones, after the text's end.
        position = len(self._prompt.ids) + self.written
        self.written += 1
        if token in self._served.silent:
            return
        if self._is_late:
            self._late.append(token)
            return
        text = self._text(self._pieces.add(token))
        piece = Token(text)
        if self._overheard is not None:
            scores = self._overheard.at(position, token, self._request.logprobs or 0)
            piece = scored(self._served.tokenizer, text, *scores)
        self._say(*self._ending.add(piece))

    def end(self, last: int, trace: SequenceTrace | None, names: dict[str, str]) -> End:
        """Tells the rest of the text, and returns the answer's end."""
        if self._late:
            self._say(self._text(self._pieces.add_all(self._late)), ())
        self._say(*self._ending.rest())
        if self._held:
            tokens = tuple(token for piece in self._held for token in piece.tokens)
            self._tell(Piece(self._choice, "".join(piece.text for piece in self._held), tokens))
        if trace is not None:
            words = [token for token in trace.tokens if token.token_id not in self._served.silent]
            trace = renamed(replace(trace, tokens=words), names)
        reason = "stop" if self.over or last in self._served.ends else "length"
        text = "".join(self._written)
        places = [at for stop in self._request.stops if (at := text.find(stop)) >= 0]
        cut = min(places, default=len(text))
        offset = len(self._prompt.text) if self._request.echo else 0
        return End(self._choice, reason, self.written, text[:cut], trace, offset)

    def _text(self, text: str) -> str:
        # The target of a source begins without the space that its first token may have.
        if self._served.reads_sources and not any(self._written):
            text = text.lstrip()
        self._written.append(text)
        return text

    def _say(self, text: str, tokens: tuple[Token, ...]) -> None:
        if not text and not tokens:
            return
        piece = Piece(self._choice, text, tokens)
        # At each piece this thread and the event loop take turns, which costs more than the piece.
        # So only a stream is told of each.
        if self._request.stream:
            self._tell(piece)
        else:
            self._held.append(piece)
