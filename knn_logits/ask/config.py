"""How a question is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from knn_logits.settings.declaration import check_fields, setting


@dataclass(frozen=True)
class AskConfig:
    """How a question is answered."""

    words: Literal["quote", "span", "write"] = setting(
        "quote",
        "Quote the sentence that answers the question, or only its words that answer, or let the "
        "model read passages and write.",
    )
    passages: int = setting(3, "Passages that are searched for the answer.", least=1, most=64)
    read: int = setting(1, "Passages that the model reads before it writes.", least=1, most=64)
    least_gain: float = setting(
        0.45,
        "No passage is about the question if none makes it likelier for the model by so much, in "
        "nats a token.",
    )
    least_shared: float = setting(
        0.4,
        "If no sentence has so large a share of the question's words, weighted by their idf, no "
        "document says the answer. Less is enough where the model is sure of the answer's words, "
        "more is needed where it is not.",
        least=0,
        most=1,
    )
    max_new_tokens: int = setting(120, "The most tokens that the model writes.", least=1)
    sample: bool = setting(False, "Sample tokens instead of taking the likeliest.")
    draft: bool = setting(
        True,
        "Verify several tokens of the passages in one forward pass.",
        option="--draft/--no-draft",
    )
    evidence: bool = setting(
        True,
        "Leave out each passage to measure what it did; one forward pass each.",
        option="--evidence/--no-evidence",
    )

    def __post_init__(self) -> None:
        check_fields(self)
