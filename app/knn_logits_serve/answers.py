"""The parts of an answer, its sources, and its form for OpenAI's clients, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from knn_logits import Answer as Asked
from knn_logits import Source
from knn_logits.hosting import DocumentShare, SequenceTrace, main_sources
from knn_logits_serve.bodies import GenerationBody, GenerationRequest

# The most spans and the most documents of an answer, and the least share of a document.
_MAX_SPANS, _MAX_DOCUMENTS, _MIN_SHARE = 32, 16, 0.01


@dataclass(frozen=True)
class Token:
    """The text that a token adds, and the log-probabilities that the request wants."""

    text: str
    logprob: float | None = None
    likeliest: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """The next text of an answer, which may end within the last of its tokens."""

    choice: int
    text: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class End:
    """The end of an answer."""

    choice: int
    reason: str  # "stop" if the model or a stop text ended it, "length" if a limit did
    tokens: int
    text: str  # the whole answer, without its prompt
    trace: SequenceTrace | None = None
    offset: int = 0  # characters of the prompt that the client gets before the answer
    answer: Asked | None = None  # to a question that was asked of the documents


AnswerPart: TypeAlias = Piece | End


@dataclass(frozen=True)
class Span:
    """Consecutive words from one document, by their first character and the one after them."""

    start: int
    end: int
    source: Source


def spans_of(end: End) -> list[Span]:
    """Returns the spans in which documents have the largest shares, in the order of the text."""
    sequence = within(end)
    if sequence is None:
        return []
    places, at = {}, 0
    for token in sequence.tokens:
        places[id(token)] = at
        at += len(token.token)
    # The target of a source begins without the space that its first token may have.
    first = sequence.text
    shift = 0 if first[:1] == end.text[:1] else len(first) - len(first.lstrip())
    spans = []
    for source in main_sources(sequence, _MAX_SPANS):
        start = places[id(source.tokens[0])] - shift
        stop = min(len(end.text), start + len(source.words))
        words = end.text[max(0, start) : stop]
        start = max(0, start) + len(words) - len(words.lstrip())
        stop -= len(words) - len(words.rstrip())
        if start < stop:
            spans.append(Span(start, stop, source))
    return spans


def within(end: End) -> SequenceTrace | None:
    """Returns the trace of the tokens that begin within the answer. A stop text may cut it."""
    if end.trace is None:
        return None
    inside, at = [], 0
    for token in end.trace.tokens:
        if at >= len(end.text) and token.token:
            break
        inside.append(token)
        at += len(token.token)
    return replace(end.trace, tokens=inside)


def sources_json(end: End) -> dict[str, Any] | None:
    """Returns the sources of an answer for a client."""
    if end.answer is not None:
        fields = end.answer.to_dict()
        names = ("answered", "quoted", "caution", "alone", "note", "passages")
        return {name: fields[name] for name in names}
    sequence = within(end)
    if sequence is None:
        return None
    spans = []
    for span in spans_of(end):
        source, neighbor, passage = span.source, span.source.neighbor, None
        if neighbor is not None:
            passage = {"before": neighbor.before, "words": source.words, "after": source.after}
            passage |= {} if neighbor.source is None else {"source": neighbor.source}
        spans.append(
            {
                "start": end.offset + span.start,
                "end": end.offset + span.end,
                "text": end.text[span.start : span.end],
                "share": round(source.total, 4),
                "document": _document(source.document),
                "passage": passage,
            }
        )
    documents = sequence.documents[:_MAX_DOCUMENTS] if sequence.tokens else []
    listed = [_document(document) for document in documents if document.share >= _MIN_SHARE]
    return {"alone": sequence.alone, "spans": spans, "documents": listed}


def _document(document: DocumentShare) -> dict[str, Any]:
    return {**asdict(document), "share": round(document.share, 4)}


class Answer:
    """The answer to a request for a completion or a chat."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request, self._chat = request, request.chat
        self._id = ("chatcmpl-" if request.chat else "cmpl-") + uuid.uuid4().hex
        self._created = int(time.time())
        self._pieces: dict[int, list[Piece]] = {}
        self._begun = False
        self._ends: dict[int, End] = {}
        self._written = 0

    def _frame(self, choices: list[dict[str, Any]], *, whole: bool = False) -> dict[str, Any]:
        chat_kind = "chat.completion" if whole else "chat.completion.chunk"
        return {
            "id": self._id,
            "object": chat_kind if self._chat else "text_completion",
            "created": self._created,
            "model": self.request.body.model,
            "choices": choices,
        }

    def _usage(self) -> dict[str, dict[str, int]]:
        read, written = self.request.prompt_tokens, self._written
        counts = {"prompt_tokens": read, "completion_tokens": written}
        return {"usage": {**counts, "total_tokens": read + written}}

    def note(self, part: AnswerPart) -> None:
        if isinstance(part, Piece):
            self._pieces.setdefault(part.choice, []).append(part)
        else:
            self._ends[part.choice] = part
            self._written += part.tokens

    def whole(self) -> dict[str, Any]:
        """Returns the whole answer, once `note` has got its last part."""
        choices = []
        for number, end in sorted(self._ends.items()):
            pieces = self._pieces.get(number, [])
            text = "".join(piece.text for piece in pieces)
            message = {"role": "assistant", "content": text, "refusal": None}
            content = {"message": message} if self._chat else {"text": text}
            tokens = [token for piece in pieces for token in piece.tokens]
            choices.append(self._choice(number, content, self._logprobs(tokens), end))
        return self._frame(choices, whole=True) | self._usage()

    def chunks(self, part: AnswerPart) -> Iterable[dict[str, Any]]:
        """Yields the chunks of a stream for a part of an answer."""
        number = part.choice
        if self._chat and not self._begun:
            opening = {"delta": {"role": "assistant", "content": ""}}
            yield self._frame([self._choice(number, opening)])
        self._begun = True
        if isinstance(part, Piece):
            content: dict[str, Any] = {"text": part.text}
            content = {"delta": {"content": part.text}} if self._chat else content
            yield self._frame([self._choice(number, content, self._logprobs(part.tokens))])
            return
        self._written += part.tokens
        nothing: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        yield self._frame([self._choice(number, nothing, end=part)])

    def last(self) -> dict[str, Any] | None:
        """Returns the last chunk of a stream, which has the usage; None if it is not wanted."""
        options = self.request.body.stream_options
        with_usage = options is not None and options.include_usage
        return self._frame([]) | self._usage() if with_usage else None

    def _choice(
        self, number: int, content: dict[str, Any], logprobs: Any = None, end: End | None = None
    ) -> dict[str, Any]:
        reason, sources = (None, None) if end is None else (end.reason, sources_json(end))
        choice = {"index": number, **content, "logprobs": logprobs, "finish_reason": reason}
        return choice if sources is None else {**choice, "sources": sources}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if self.request.logprobs is None:
            return None
        likeliest = [None if token.logprob is None else _by_text(token) for token in tokens]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": likeliest if self.request.logprobs else None,
        }


def _by_text(token: Token) -> dict[str, float]:
    by_text: dict[str, float] = {}
    for text, value in token.likeliest:
        by_text.setdefault(text, value)  # of two tokens with the same text the likelier one stays
    return by_text


def message_json(model: str, text: str) -> dict[str, Any]:
    """Returns an answer to a chat that no model wrote."""
    answer = Answer(GenerationRequest(GenerationBody(model=model), True, ()))
    answer.note(Piece(0, text, ()))
    answer.note(End(0, "stop", 0, text))
    return answer.whole()
