"""Answers a question from the documents, in frames for `assets/chat.js`.

No other module of the page knows `knn_logits.Asking` and its answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from knn_logits import Answer, AskConfig, Asking, Memory, text_ids
from knn_logits.hosting import Deadline, PassageEffect, Pieces
from knn_logits_app.decoding import TokenStream
from knn_logits_app.requests import MOST_CHARACTERS, Lookup, text_of
from knn_logits_app.session import FRAME_SECONDS, Session, Stores, emitted

# The most messages of a conversation that are read.
MOST_MESSAGES = 16
_EMPTY: dict[str, Any] = {"done": False, "stopped": None, "text": "", "parts": [], "passages": []}


@dataclass(frozen=True)
class Question:
    """A question with the messages before it, in pairs of a question and its answer."""

    text: str
    lookup: Lookup
    history: tuple[dict[str, str], ...] = ()


class _Turn(BaseModel):
    role: Literal["user", "assistant"]
    content: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]


class Asked(BaseModel):
    """A question of the chat, with the number of its reply in `turn`."""

    turn: Annotated[int, Field(ge=0)]
    question: Any
    history: Annotated[list[_Turn], Field(max_length=MOST_MESSAGES)]


def question_of(asked: Asked, lookup: Lookup) -> Question:
    """Checks a request. Of a long conversation the first messages are left out."""
    turns = [turn.model_dump() for turn in asked.history]
    while sum(len(turn["content"]) for turn in turns) > MOST_CHARACTERS:
        del turns[:2]
    return Question(text_of(asked.question, "question"), lookup, tuple(turns))


def asking_of(session: Session, question: Question, private: Stores | None = None) -> Asking:
    """Opens the datastores of a question, or refuses it before anything runs."""
    library, lookup = session.library, question.lookup
    new_tokens = min(AskConfig().max_new_tokens, session.limits.new_tokens)
    session.limits.check(
        prompt_tokens=len(text_ids(library.tokenizer, question.text)), new_tokens=new_tokens
    )
    stores = session.stores(lookup, private)
    memory = library.memory.over(stores)
    if set(lookup.stores) & set(private or {}):
        # An open memory keeps the passages that it has cut, and a visitor's text must not stay.
        memory = Memory(library.model, stores, threads=1, check=False)
    config = AskConfig(max_new_tokens=new_tokens)
    return Asking(library.model, library.tokenizer, memory, config)


def ask_steps(
    session: Session, question: Question, deadline: Deadline, private: Stores | None = None
) -> Iterator[dict[str, Any]]:
    """Yields frames of the reply as it grows: words that are written, and then the answer."""
    asking = asking_of(session, question, private)
    most = asking.config.max_new_tokens
    shown = {**_EMPTY, "stores": list(question.lookup.stores)}

    def run(emit: Callable[[dict[str, Any]], None]) -> None:
        heard = _Heard(session, lambda text: emit({"text": text, "parts": [[text, None]]}))
        answer = asking.answer(
            question.text, question.history, TokenStream(heard.add), stopping_criteria=[deadline]
        )
        cut = None
        if heard.number >= most:
            cut = f"an answer has {most} tokens at most"
        elif heard.number and deadline.over:
            cut = _reason(deadline)
        emit({**_packed(answer), "stopped": cut, "done": True})

    yield shown
    frame: dict[str, Any] = shown
    for steps in emitted({"ask": run}, deadline):
        if steps:
            frame = {**shown, **steps[-1]}
            yield frame
        elif deadline.over and not frame["text"]:
            # The search has no step at which it could end.
            yield {**shown, "stopped": _reason(deadline), "done": True}
            return


def _reason(deadline: Deadline) -> str:
    return "stopped" if deadline.cancelled else "the time is up"


def _packed(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "parts": _parts(answer),
        "answered": answer.answered,
        "quoted": answer.quoted,
        "note": answer.note if answer.answered else "",
        "table": answer.quoted and any(_is_row(row) for row in answer.passages if row.read),
        "passages": [_passage(row) for row in answer.passages],
    }


def _is_row(row: PassageEffect) -> bool:
    """Whether a sentence is a table's row, which comes with the names of its columns."""
    return " ".join(row.sentence.split()) not in " ".join(row.text.split())


def _parts(answer: Answer) -> list[list[Any]]:
    """An answer's text in parts, each with the number of the passage that has its words."""
    parts: list[list[Any]] = [
        ["".join(token.token for token in group), source]
        for source, group in groupby(answer.tokens, lambda token: token.source)
    ]
    if not answer.tokens:
        rest = answer.text
        for number, row in enumerate(answer.passages):
            before, sentence, after = rest.partition(row.sentence)
            if sentence:
                parts += [[before, None], [sentence, number]]
                rest = after
        parts.append([rest, None])
    return [[text, source] for text, source in parts if text]


def _passage(row: PassageEffect) -> dict[str, Any]:
    heading = f", “{row.heading}”" if row.heading and row.heading not in row.title else ""
    first, last = row.place or (0, 0)
    pieces = [[row.text[:first], False], [row.text[first:last], True], [row.text[last:], False]]
    return {
        "store": row.store,
        "document": row.document,
        "title": f"{row.title}{heading}",
        "read": row.read,
        "uri": row.uri,
        "span": row.span,
        "sentence": row.sentence,
        "text": [piece for piece in pieces if piece[0]],
    }


class _Heard:
    """Collects the words that the model writes, and tells them as often as a reader can follow."""

    def __init__(self, session: Session, tell: Callable[[str], None]) -> None:
        library = session.library
        self._tell = tell
        self._silent = library.reader.silent | set(library.tokenizer.all_special_ids)
        self._pieces = Pieces(library.tokenizer, [])
        self._last = 0.0
        self._text, self.number = "", 0

    def add(self, token: int) -> None:
        self.number += 1
        if token in self._silent:
            return
        self._text += self._pieces.add(token)
        now = time.monotonic()
        if self._text.strip() and now - self._last >= FRAME_SECONDS:
            self._last = now
            self._tell(self._text.strip())
