"""What a client asks for, whichever of the two ways it asks: tokens, and how to go on from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """A text to go on from, or for an encoder-decoder model one to answer.

    Attributes:
        inputs: Arguments of the model's `generate()`.
        ids: The tokens of the text so far: of an encoder-decoder model those that begin its own.
        tokens: How many tokens were given.
        text: The text, where it is to be told as well.
    """

    inputs: Mapping[str, Any]
    ids: list[int]
    tokens: int
    text: str = ""


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from the mixture's distribution.

    Attributes:
        temperature: 0 takes the likeliest.
        top_p: Nucleus; 1 for all tokens.
        top_k: The likeliest so many; 0 for all tokens.
        seed: Of the first choice; each further one has the next.
        presence: Subtracted from the logits of tokens written before.
        frequency: Subtracted as often as a token was written before.
        bias: Added to the logits of tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request, checked.

    Attributes:
        model: The model's name, as the client wrote it.
        chat: Whether a chat asks, or a completion.
        prompts: The texts to go on from.
        stores: Names of the datastores that vote; empty for the model alone.
        settings: Settings of the vote that are given: `lmbda`, `k`, `temperature`, `exclude`.
        n: Choices for each prompt.
        new_tokens: Tokens to write, at most.
        sampling: How a token is chosen.
        stops: Texts before which an answer ends.
        logprobs: How many likeliest tokens to name at each place; None tells no probabilities.
        echo: Whether an answer begins with its prompt.
        stream: Whether the answer comes as it is written.
        usage: Whether a stream tells at its end how many tokens there were.
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

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt.tokens for prompt in self.prompts)
