"""What a visitor asks for, checked. Nothing from a page or a raw request is believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knn_logits import KNNLogitsError, LimitError

MOST_NEIGHBORS = 4096
MOST_STORES = 8
# Characters of a prompt that are looked at at all, before a tokenizer sees it.
MOST_CHARACTERS = 20_000


class RequestError(KNNLogitsError):
    """A request that makes no sense; the message is the line that its sender reads."""


@dataclass(frozen=True)
class Lookup:
    """Which datastores to ask, and how. None takes the datastore's own setting.

    `gate` lets the datastore's gate choose λ at each word, where it has one. `without` are the ids
    of documents that are left out, `max_neighbors` the passages kept for a token.
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
    """A text to continue, and how.

    Attributes:
        prompt: The text.
        lookup: What to look up; None writes without kNN.
        compare: Write without kNN as well.
        new_tokens: Tokens to write, at most.
        one_sentence: End with the first sentence.
        sample: Draw tokens instead of taking the likeliest.
        sampling_temperature: Of the drawing.
        top_p: Nucleus of the drawing.
        seed: Of the drawing.
        begun: Tokens with which the answer begins.
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
    """A text that is there, is not endless, and can be encoded."""
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"The {name} is empty: write something first.")
    if len(value) > most:
        raise LimitError(
            f"the {name} has {len(value):,} characters; {most:,} are allowed: shorten it"
        )
    try:
        value.encode("utf-8")
    except UnicodeError:
        raise RequestError(f"The {name} holds half a character; copy it again.") from None
    return value


def whole(value: Any, name: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    number = real(value, name, least, most)
    if number != int(number):
        raise RequestError(f"{name} must be a whole number, not {number}.")
    return int(number)


def real(value: Any, name: str, least: float, most: float) -> float:
    """A number within bounds."""
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
    """The datastores to ask, and with which settings."""
    if isinstance(stores, str):
        stores = [stores]
    if not isinstance(stores, Sequence) or not all(isinstance(one, str) for one in stores):
        raise RequestError("Name the datastores as a list.")
    if not stores:
        raise RequestError("Choose at least one datastore, or switch kNN off.")
    if len(stores) > MOST_STORES:
        raise LimitError(f"{len(stores)} datastores at once; {MOST_STORES} are allowed")
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
    """A text to continue, with every setting checked."""
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
