"""Checks every value that a visitor's request contains, whether it comes from the page or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knn_logits import KNNLogitsError, LimitError

MOST_NEIGHBORS = 4096
MOST_STORES = 8
# The most characters of a prompt. They are counted before a tokenizer sees the prompt.
MOST_CHARACTERS = 20_000


class RequestError(KNNLogitsError):
    """A request cannot be answered. The message is shown to its sender."""


@dataclass(frozen=True)
class Lookup:
    """The datastores to search, and the settings. None takes the datastore's own setting.

    Attributes:
        stores: The names of the datastores.
        k: Neighbors of each query.
        lmbda: Weight of the neighbors.
        temperature: Temperature of the softmax over the neighbors.
        gate: Whether the datastore's gate, if it has one, chooses λ at each token.
        without: The ids or titles of documents that are ignored.
        max_neighbors: The most passages that are kept for each token.
    """

    stores: tuple[str, ...]
    k: int | None = None
    lmbda: float | None = None
    temperature: float | None = None
    gate: bool = False
    without: tuple[str, ...] = ()
    max_neighbors: int = 3


@dataclass(frozen=True)
class Writing:
    """A request to continue a text.

    Attributes:
        prompt: The text.
        lookup: The datastores to search; None writes without kNN.
        compare: Whether to write a text without kNN as well.
        new_tokens: The most tokens to write.
        one_sentence: Whether the answer ends with its first sentence.
        sample: Whether to sample tokens. Otherwise the likeliest token is taken.
        sampling_temperature: Temperature of the sampling.
        top_p: The probability mass that is sampled from (nucleus sampling).
        seed: Seed of the sampling.
        begun: The tokens with which the answer begins.
    """

    prompt: str
    lookup: Lookup | None
    compare: bool = False
    new_tokens: int = 60
    one_sentence: bool = False
    sample: bool = False
    sampling_temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    begun: tuple[int, ...] = ()


def text_of(value: Any, name: str = "text", *, most: int = MOST_CHARACTERS) -> str:
    """Returns a value if it is a text that is not empty, not too long, and valid Unicode."""
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"The {name} is empty: write something first.")
    if len(value) > most:
        raise LimitError(
            f"the {name} has {len(value):,} characters, but only {most:,} are allowed: shorten it"
        )
    try:
        value.encode("utf-8")
    except UnicodeError:
        raise RequestError(f"The {name} contains half a character: copy it again.") from None
    return value


def whole(value: Any, name: str, least: int, most: int) -> int:
    """Returns a value if it is a whole number within the bounds."""
    number = real(value, name, least, most)
    if number != int(number):
        raise RequestError(f"{name} must be a whole number, not {number}.")
    return int(number)


def real(value: Any, name: str, least: float, most: float) -> float:
    """Returns a value if it is a number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{name} must be a number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not least <= number <= most:
        raise RequestError(f"{name} must lie between {least:g} and {most:g}.")
    return number


def lookup_of(
    stores: Any, k: Any = None, lmbda: Any = None, temperature: Any = None, gate: Any = False
) -> Lookup:
    """Checks the datastores to search, and the settings."""
    if isinstance(stores, str):
        stores = [stores]
    if not isinstance(stores, Sequence) or not all(isinstance(one, str) for one in stores):
        raise RequestError("The datastores must be a list of names.")
    if not stores:
        raise RequestError("Choose at least one datastore, or switch kNN off.")
    if len(stores) > MOST_STORES:
        raise LimitError(
            f"{len(stores)} datastores are chosen, but only {MOST_STORES} are allowed: choose fewer"
        )
    return Lookup(
        tuple(dict.fromkeys(stores)),
        None if k is None else whole(k, "k", 1, MOST_NEIGHBORS),
        None if lmbda is None else real(lmbda, "λ", 0.0, 1.0),
        None if temperature is None else real(temperature, "The temperature", 1e-6, 1e6),
        gate is True,
    )


def writing_of(
    prompt: Any,
    lookup: Lookup | None,
    *,
    compare: Any = False,
    new_tokens: Any = 60,
    one_sentence: Any = False,
    sample: Any = False,
    sampling_temperature: Any = 1.0,
    top_p: Any = 1.0,
    seed: Any = 0,
) -> Writing:
    """Checks every setting of a request to continue a text."""
    return Writing(
        text_of(prompt, "prompt"),
        lookup,
        compare is True and lookup is not None,
        whole(new_tokens, "The length", 1, 1_000_000),
        one_sentence is True,
        sample is True,
        real(sampling_temperature, "The sampling temperature", 0.01, 100.0),
        real(top_p, "top-p", 0.01, 1.0),
        whole(seed, "The seed", 0, 2**32 - 1),
    )
