"""`Answer` holds the answer to a question, with the passages that were read and what each did."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from knn_logits.ask.passages import sentence_span
from knn_logits.evidence.trace_json import write_whole

# What is said where passages were read and do not hold the answer.
NOT_SAID = "No document says that."
# What is said where no passage is about the question.
ALONE = "No document is about this: the model answers alone."


@dataclass(frozen=True)
class PassageEffect:
    """A passage that was read.

    Attributes:
        store: The datastore's name.
        document: The document's id.
        title: The document's title with the place in it, such as "handbook.pdf, page 12".
        uri: The document's address, if there is one.
        place: The place alone, such as "page 12"; None if it is not known.
        text: The passage's text.
        score: How well it fits the question, by BM25.
        read: Whether the answer is from it, or was written after reading it.
        effect: The sum of its effects on the answer's tokens, in nats; None if it was not measured.
        span: Its first token in the datastore's tokens, and the one after its last.
    """

    store: str
    document: str
    title: str
    uri: str | None
    place: str | None
    text: str
    score: float
    read: bool
    effect: float | None
    span: tuple[int, int]

    def find(self, sentence: str) -> tuple[int, int] | None:
        """Returns where a sentence stands in the text; None if it does not."""
        return sentence_span(self.text, sentence)


@dataclass(frozen=True)
class DocumentEffect:
    """What a document's passages did to a token: the difference in its log p, in nats."""

    document: str
    effect: float


@dataclass(frozen=True)
class AnswerToken:
    """A token of an answer.

    Attributes:
        token: Its text.
        token_id: Its id.
        p: Its probability with all passages in the prompt.
        documents: What each document did to it, the largest effect first.
        source: The number of the passage that has its word; None if none has it.
    """

    token: str
    token_id: int
    p: float
    documents: list[DocumentEffect] = field(default_factory=list)
    source: int | None = None

    @property
    def special(self) -> bool:
        """No token of an answer is one of the tokenizer's own."""
        return False


@dataclass(frozen=True)
class Answer:
    """An answer and its evidence.

    Attributes:
        question: The question.
        text: The answer: a sentence of a document, or what the model writes.
        answered: Whether a document says it.
        near: Whether a passage is about the question. If none is, the model answers alone.
        quoted: Whether the text is a sentence of a document, word for word.
        tokens: The answer's tokens.
        passages: The best passages, three or as many as are read, first those that the answer or
            `sentence` is from.
        passes: Forward passes of the model, those for the effects included.
        seconds: The time that it took.
        sentence: The sentence that was quoted, or the nearest one where passages are about the
            question and none says the answer; None where the model wrote.
        span: Where in the quoted sentence the words stand that answer, as the model picks them;
            None if it picked none.
    """

    question: str
    text: str
    answered: bool
    near: bool
    quoted: bool
    tokens: list[AnswerToken]
    passages: list[PassageEffect]
    passes: int
    seconds: float
    sentence: str | None = None
    span: tuple[int, int] | None = None

    @property
    def short(self) -> str:
        """The words of the quoted sentence that answer; the text if there are none."""
        if self.sentence is None or self.span is None:
            return self.text
        return self.sentence[slice(*self.span)]

    @property
    def note(self) -> str:
        """What has to be said beside the text; empty where the documents hold it."""
        if self.answered:
            return ""
        if not self.near:
            return ALONE
        return f"The nearest sentence: “{self.sentence}”" if self.sentence else NOT_SAID

    def effect_line(self, passage: PassageEffect) -> str | None:
        """What reading a passage changes for the model, as a sentence; None if not measured."""
        if passage.effect is None or not self.tokens:
            return None
        factor = _factor(passage.effect / len(self.tokens))
        if _hardly_differs(factor):
            return "Reading it hardly changes how likely the answer is."
        change = "less likely" if factor < 1 else "likelier"
        return (
            f"Reading it makes the answer {change} for the model: each piece of a word "
            f"{_times(factor)} as likely, on average."
        )

    def word_lines(self, tokens: Sequence[AnswerToken]) -> list[str]:
        """What reading each document changes for a word, given its tokens."""
        effects: dict[str, float] = {}
        for part in (part for token in tokens for part in token.documents):
            effects[part.document] = effects.get(part.document, 0.0) + part.effect
        return [
            f"reading {document} hardly changes how likely it is"
            if _hardly_differs(factor := _factor(effect))
            else f"reading {document} makes it {_times(factor)} as likely"
            for document, effect in effects.items()
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the answer as JSON."""
        write_whole(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """Returns the answer as plain values, for JSON."""
        return asdict(self) | {"note": self.note}


def _factor(effect: float) -> float:
    """How many times as likely a change of log p in nats makes something."""
    return math.exp(min(effect, 700.0))


def _hardly_differs(factor: float) -> bool:
    return 0.95 < factor < 1.05


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 9.95 else f"{factor:.2g} times"
