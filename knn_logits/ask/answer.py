"""`Answer` holds the answer to a question, with the passages it is from or the nearest ones."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from knn_logits.engine.passages import sentence_span
from knn_logits.evidence.trace import write_whole

NO_ANSWER = "No passage answers this."
# It stands in what a model writes that was told to say so.
DECLINED = NO_ANSWER.rstrip(".").lower()
ALONE = "No passage answers this: the model answers without the documents."


@dataclass(frozen=True)
class PassageEffect:
    """A passage that was read, or that comes near a question.

    Attributes:
        store: The datastore's name.
        document: The document's id.
        title: The document's title with the place in it, such as "handbook.pdf, page 12".
        uri: The document's address, if there is one.
        place: The place alone, such as "page 12"; None if it is not known.
        text: The passage's text.
        sentence: Its sentence that is quoted, or that comes nearest.
        read: Whether the answer is from it, or was written after reading it.
        effect: The sum of its effects on the tokens of a written answer, in nats; None if it was
            not measured.
        span: Its first token in the datastore's tokens, and the one after its last.
    """

    store: str
    document: str
    title: str
    uri: str | None
    place: str | None
    text: str
    sentence: str
    read: bool
    effect: float | None
    span: tuple[int, int]

    def find(self) -> tuple[int, int] | None:
        """Returns where the sentence stands in the text; None if it does not."""
        return sentence_span(self.text, self.sentence)


@dataclass(frozen=True)
class DocumentEffect:
    """The effect of a document's passages on a token: the difference in its log p, in nats."""

    document: str
    effect: float


@dataclass(frozen=True)
class AnswerToken:
    """A token of a written answer.

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
        text: The answer: a sentence of a document, what the model writes, or that there is none.
        answered: Whether passages answer it.
        quoted: Whether the text is a sentence of a document, word for word.
        alone: Whether the model wrote the text without a passage.
        tokens: The tokens that the model wrote, if their effects were measured.
        passages: The passages that were read. If none answers, the nearest ones, at most three.
        passes: Forward passes of the language model, those for the effects included.
        seconds: The time that it took.
    """

    question: str
    text: str
    answered: bool = False
    quoted: bool = False
    alone: bool = False
    tokens: list[AnswerToken] = field(default_factory=list)
    passages: list[PassageEffect] = field(default_factory=list)
    passes: int = 0
    seconds: float = 0.0

    @property
    def note(self) -> str:
        """Text beside the answer: the nearest sentences, or that the model wrote it alone."""
        if self.alone:
            return ALONE
        if self.answered:
            return ""
        return "\n".join(f"Perhaps: “{row.sentence}” [{row.title}]" for row in self.passages)

    def effect_line(self, passage: PassageEffect) -> str | None:
        """The effect of reading a passage on the model, as a sentence; None if not measured."""
        if passage.effect is None or not self.tokens:
            return None
        return f"Reading it makes the answer {_change(passage.effect / len(self.tokens))}."

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the answer as JSON."""
        write_whole(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """Returns the answer as plain values, for JSON."""
        return asdict(self) | {"note": self.note}


def _change(effect: float) -> str:
    """A change of log p in nats, in words."""
    if abs(effect) < 0.05:
        return "hardly likelier or less likely for the model"
    return f"{'likelier' if effect > 0 else 'less likely'} for the model"
