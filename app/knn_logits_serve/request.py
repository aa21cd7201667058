"""A checked request, which is the same for completions and chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from knn_logits_serve.bodies import GenerationBody


@dataclass(frozen=True)
class Prompt:
    """A text to continue."""

    inputs: Mapping[str, Any]  # arguments of the model's `generate()`
    ids: list[int]
    tokens: int  # that the request gave
    text: str = ""
    message: str | None = None  # the person's words, where a template put others around them
    opens: bool = False  # whether the answer is a text of its own, which begins without a blank


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from the mixture's distribution, as OpenAI names it."""

    temperature: float = 0.0  # 0 takes the likeliest token
    top_p: float = 1.0
    top_k: int = 0  # 0 allows all tokens
    min_p: float = 0.0  # the least share of the likeliest token's probability
    seed: int = 0  # of the first choice; each further one has the next number


@dataclass(frozen=True)
class GenerationRequest:
    """A request that was checked: its body, and what follows from it and the model."""

    body: GenerationBody
    chat: bool
    prompts: tuple[Prompt, ...]
    stores: tuple[str, ...] = ()  # the datastores that vote; empty for the model alone
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that the request gives
    new_tokens: int = 16
    sampling: Sampling = Sampling()
    schema: dict[str, Any] | None = None  # that the answer follows
    logprobs: int | None = None  # likeliest tokens at each position; None: no probabilities
    echo: bool = False
    question: str | None = None  # is asked of the documents, after these messages
    history: tuple[Mapping[str, str], ...] = ()
    drawn: bool = False  # as coloured words; only then the likeliest other tokens are kept

    @property
    def n(self) -> int:
        """Answers to each prompt."""
        return self.body.n or 1

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)
