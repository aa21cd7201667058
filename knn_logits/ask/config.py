"""How a question is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from knn_logits.settings.declaration import check_fields, setting

# The words of an answer: a sentence of a document, or the model's own.
Words: TypeAlias = Literal["auto", "quote", "write"]
Outside: TypeAlias = Literal["decline", "model"]


@dataclass(frozen=True)
class AskConfig:
    """How a question is answered."""

    words: Words = setting(
        "auto",
        "Quote the sentence that answers the question, or have the model write an answer from "
        "passages; auto has a model write that passes a reading test.",
    )
    outside: Outside = setting(
        "decline",
        "If no passage answers: decline and show the nearest sentences, or let the model answer "
        "without passages.",
    )
    read: int = setting(
        3, "Number of passages in the model's context when it writes.", least=1, most=64
    )
    max_new_tokens: int = setting(120, "Maximum number of new tokens.", least=1)
    evidence: bool = setting(
        True,
        "Measure the effect of each passage on a written answer by leaving it out; one forward "
        "pass each.",
        option="--evidence/--no-evidence",
    )

    def __post_init__(self) -> None:
        check_fields(self)
