"""How a question is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from knn_logits.settings.declaration import check_fields, setting


@dataclass(frozen=True)
class AskConfig:
    """How a question is answered."""

    words: Literal["auto", "quote", "write"] = setting(
        "auto",
        "Quote the sentence that answers the question, or have the model write an answer from "
        "passages; auto has a model write that passes a reading test.",
    )
    outside: Literal["decline", "model"] = setting(
        "decline",
        "If no passage answers: decline and show the nearest sentences, or let the model answer "
        "without passages.",
    )
    read: int = setting(
        3, "Number of passages in the model's context when it writes.", least=1, most=64
    )
    max_new_tokens: int = setting(120, "Maximum number of new tokens.", least=1)

    def __post_init__(self) -> None:
        check_fields(self)
