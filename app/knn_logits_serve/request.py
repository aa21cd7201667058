"""A checked request, which is the same for completions and chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """A text to continue, or the source of an encoder-decoder model.

    Attributes:
        inputs: Arguments of the model's `generate()`.
        ids: The tokens of the text so far. For an encoder-decoder model they begin the target.
        tokens: Number of tokens that the request gave.
        text: The text of the prompt, which an echo repeats.
    """

    inputs: Mapping[str, Any]
    ids: list[int]
    tokens: int
    text: str = ""


@dataclass(frozen=True)
class Sampling:
    """The settings for choosing a token from the mixture's distribution.

    Attributes:
        temperature: Temperature of the sampling; 0 takes the likeliest token.
        top_p: The probability mass that is sampled from (nucleus sampling); 1 allows all tokens.
        top_k: How many of the likeliest tokens are sampled from; 0 allows all tokens.
        seed: Seed of the first choice. Each further choice has the next number.
        presence: Penalty for the logits of tokens that were written before.
        frequency: Penalty for each time that a token was written before.
        bias: Numbers that are added to the logits of tokens, by token.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerationRequest:
    """A request that was checked.

    Attributes:
        model: The model's name, as the client wrote it.
        chat: Whether the request is a chat. Otherwise it is a completion.
        prompts: The prompts.
        stores: Names of the datastores that vote; empty for the model alone.
        settings: The settings of the vote that the request gives: `lmbda`, `k`, `temperature` and
            `exclude`.
        n: Number of answers to each prompt.
        new_tokens: The most tokens to write.
        sampling: The settings for choosing a token.
        stops: Stop texts, before which an answer ends.
        logprobs: How many of the likeliest tokens are named at each position; None names no
            probabilities.
        echo: Whether an answer begins with its prompt.
        stream: Whether the answer is sent while it is written.
        usage: Whether a stream names the number of tokens at its end.
        drawn: Whether the answer is drawn as coloured words. Only then the likeliest other tokens
            of each position are kept.
    """

    model: str
    chat: bool
    prompts: tuple[Prompt, ...]
    stores: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    new_tokens: int = 16
    sampling: Sampling = Sampling()
    stops: tuple[str, ...] = ()
    logprobs: int | None = None
    echo: bool = False
    stream: bool = False
    usage: bool = False
    drawn: bool = False

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of all prompts."""
        return sum(prompt.tokens for prompt in self.prompts)
