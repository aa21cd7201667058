"""`Answer` holds the answer to a question, with the passages it is from or the nearest ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

NO_ANSWER = "No passage clearly answers this."
# It stands in what a model writes that was told to say so of the passages that it read.
DECLINED = "no passage answers this"
ALONE = "No passage clearly answers this: the model answers without the documents."
_CAUTIONS = {
    None: "",
    "around": "This is the passage around the last answer.",
    "doubtful": "This comes nearest, and may not answer the question.",
}


@dataclass(frozen=True)
class PassageEffect:
    """A passage that was read, or that comes near a question.

    Attributes:
        store: The datastore's name.
        document: The document's id.
        title: The document's title with the place in it, such as "handbook.pdf, page 12".
        uri: The document's address, if there is one.
        heading: The heading above it; None if there is none.
        text: The passage's text.
        sentence: Its sentence that is quoted, or that comes nearest. The cells of a table's row are
            after the names of their columns.
        place: The sentence's first character in the text, and the one after its last; None if it
            was not found.
        read: Whether the answer is from it, or was written after reading it.
        effect: Its effect on a written answer: log p with all passages minus log p without this
            one, in nats; None if nothing was written after reading it.
        span: Its first token in the datastore's tokens, and the one after its last.
    """

    store: str
    document: str
    title: str
    uri: str | None
    heading: str | None
    text: str
    sentence: str
    place: tuple[int, int] | None
    read: bool
    effect: float | None
    span: tuple[int, int]


@dataclass(frozen=True)
class AnswerToken:
    """A token of a written answer.

    Attributes:
        token: Its text.
        token_id: Its id.
        source: The number of the passage that has its word; None if none has it.
    """

    token: str
    token_id: int
    source: int | None = None
    special = False  # None of them is one of the tokenizer's own.


@dataclass(frozen=True)
class Answer:
    """An answer and its evidence.

    Attributes:
        question: The question.
        text: The answer: a sentence of a document, what the model writes, or that there is none.
        answered: Whether passages answer it.
        quoted: Whether the text is a sentence of a document, word for word.
        caution: Why the quotation may not answer it: it is the passage "around" the last answer, or
            it is "doubtful", hardly nearer than an answer needs. None otherwise.
        alone: Whether the model wrote the text without a passage.
        tokens: The tokens that the model wrote after reading passages.
        passages: The passages that were read; up to three near ones where none clearly answers.
    """

    question: str
    text: str
    answered: bool = False
    quoted: bool = False
    caution: str | None = None
    alone: bool = False
    tokens: list[AnswerToken] = field(default_factory=list)
    passages: list[PassageEffect] = field(default_factory=list)

    @property
    def note(self) -> str:
        """Text beside the answer: a caution, or the nearest sentences if none answers."""
        if self.alone:
            return ALONE
        if self.answered:
            return _CAUTIONS[self.caution]
        return "\n".join(f"Perhaps: “{row.sentence}” [{row.title}]" for row in self.passages)

    def to_dict(self) -> dict[str, Any]:
        """Returns the answer as plain values, for JSON."""
        return asdict(self) | {"note": self.note}
