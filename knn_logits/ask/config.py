"""How a question is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from knn_logits.settings.declaration import check_fields, setting

# The words of an answer: a sentence of a document, a part of it, or the model's own.
Words: TypeAlias = Literal["quote", "span", "write"]


@dataclass(frozen=True)
class AskConfig:
    """How a question is answered."""

    words: Words = setting(
        "quote",
        "Quote the sentence that answers the question, or only the answering words, or have the "
        "model write an answer from passages.",
    )
    passages: int = setting(10, "Number of passages searched for the answer.", least=1, most=64)
    read: int = setting(
        1, "Number of passages in the model's context when it writes.", least=1, most=64
    )
    least_gain: float = setting(
        0.45,
        "Minimum gain in the question's log-likelihood, in nats per token, for a passage to "
        "count as relevant.",
    )
    least_shared: float = setting(
        0.4,
        "Minimum idf-weighted share of the question's words in a sentence; below it, no document "
        "has the answer. Lower if the model is sure of the answer's words, higher if it is not.",
        least=0,
        most=1,
    )
    least_match: float = setting(
        0.0,
        "Minimum sum of that share and of the best passage's BM25 score per idf of the question's "
        "words; 0.9 refuses more of the questions that the documents only come near.",
        least=0,
        most=2,
    )
    max_new_tokens: int = setting(120, "Maximum number of new tokens.", least=1)
    sample: bool = setting(False, "Sample instead of greedy decoding.")
    draft: bool = setting(
        True,
        "Verify several draft tokens from the passages per forward pass.",
        option="--draft/--no-draft",
    )
    evidence: bool = setting(
        True,
        "Measure the effect of each passage by leaving it out; one forward pass each.",
        option="--evidence/--no-evidence",
    )

    def __post_init__(self) -> None:
        check_fields(self)
