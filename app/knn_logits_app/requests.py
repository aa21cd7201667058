"""Checks every value that a visitor's request contains, whether it comes from the page or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from knn_logits import KNNLogitsError
from knn_logits.errors import ConfigError, LimitError
from knn_logits.hosting import settings_for

MOST_STORES = 8
# The most characters of a prompt. They are counted before a tokenizer sees the prompt.
MOST_CHARACTERS = 20_000
_MOST_WITHOUT, _MOST_LINE = 16, 200
_NONSENSE = "The page sent a request that makes no sense: reload the page."


class RequestError(KNNLogitsError):
    """A request cannot be answered. The message is shown to its sender."""


# The settings that a visitor may change, by name. λ comes first, with the largest effect.
_DECLARED = settings_for("page")
SETTINGS = {"lmbda": _DECLARED["lmbda"], **_DECLARED}


@dataclass(frozen=True)
class Lookup:
    """The datastores to search, and the settings; for absent ones the datastore's values hold."""

    stores: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # the ids or titles of documents that are ignored
    max_neighbors: int = 3


@dataclass(frozen=True)
class Writing:
    """A request to continue a text."""

    prompt: str
    lookup: Lookup | None
    compare: bool = False
    new_tokens: int = 60
    sentence: bool = False
    sample: bool = False
    sampling_temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Rewriting:
    """A request to write an answer again without documents, of which one is `named`."""

    values: Sequence[Any]
    without: tuple[str, ...]
    named: str


def text_of(value: Any, name: str = "text", *, most: int = MOST_CHARACTERS) -> str:
    """Returns a value if it is a text that is not empty, not too long, and valid Unicode."""
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"The {name} is empty: enter some text first.")
    if len(value) > most:
        raise LimitError(
            f"the {name} has {len(value):,} characters, but the limit is {most:,}: shorten it"
        )
    try:
        value.encode("utf-8")
    except UnicodeError:
        raise RequestError(f"The {name} contains an incomplete character: copy it again.") from None
    return value


def whole(value: Any, name: str, least: float, most: float) -> int:
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


def _setting(name: str, value: Any) -> Any:
    declared = SETTINGS[name]
    sign = declared.symbol or name
    if declared.kind in (int, float) and (
        isinstance(value, bool) or not isinstance(value, (int, float))
    ):
        raise RequestError(f"{sign} must be a number.")
    try:
        return declared.check(value, limited=True)
    except ConfigError as error:
        raise RequestError(str(error).replace(name, sign, 1)[:_MOST_LINE]) from None


def lookup_of(stores: Any, settings: Mapping[str, Any], **rest: Any) -> Lookup:
    """Checks the datastores to search, and the settings. A setting that is None is left out."""
    if isinstance(stores, str):
        stores = [stores]
    if not isinstance(stores, Sequence) or not all(isinstance(name, str) for name in stores):
        raise RequestError("The datastores must be a list of names.")
    if not stores:
        raise RequestError("Choose at least one datastore, or switch kNN off.")
    if len(stores) > MOST_STORES:
        raise LimitError(
            f"{len(stores)} datastores are chosen, but only {MOST_STORES} are allowed: choose fewer"
        )
    checked = {name: _setting(name, value) for name, value in settings.items() if value is not None}
    return Lookup(tuple(dict.fromkeys(stores)), checked, **rest)


_WRITING: dict[str, Callable[[Any], Any]] = {
    "new_tokens": lambda value: whole(value, "The length", 1, 1_000_000),
    "sentence": lambda value: value is True,
    "sample": lambda value: value is True,
    "sampling_temperature": lambda value: real(value, "The sampling temperature", 0.01, 100.0),
    "top_p": lambda value: real(value, "top-p", 0.01, 1.0),
    "seed": lambda value: whole(value, "The seed", 0, 2**32 - 1),
}


def writing_of(prompt: Any, lookup: Lookup | None, compare: Any = False, **how: Any) -> Writing:
    """Checks every setting of a request to continue a text."""
    text = text_of(prompt, "prompt")
    checked = {name: _WRITING[name](value) for name, value in how.items()}
    return Writing(text, lookup, compare is True and lookup is not None, **checked)


def rewriting_of(content: Any, number: int) -> Rewriting:
    """Checks a browser's request to write an answer again, whose form has `number` values."""
    if not isinstance(content, dict):
        raise RequestError(_NONSENSE)
    without = list_of(content.get("without"), _MOST_WITHOUT, least=1)
    return Rewriting(
        list_of(content.get("values"), number, least=number),
        tuple(text_of(name, "document") for name in without),
        text_of(content.get("named"), "document", most=_MOST_LINE),
    )


def list_of(value: Any, most: int, *, least: int = 0) -> list[Any]:
    """Returns a value if it is a list of an allowed length."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise RequestError(_NONSENSE)
    return value


def is_web(uri: str | None) -> bool:
    """Whether a document's address leads to the web; only such a one becomes a link."""
    if uri is None or not uri.lower().startswith(("http://", "https://")):
        return False
    try:
        return bool(urlsplit(uri).hostname)
    except ValueError:
        return False


# Signs of settings, which keep their case at the start of a line: λ is not Λ.
SIGNS = ("λ", "τ", "k", "p")


def friendly(error: BaseException) -> str:
    """Returns one line about an error for a visitor, without a path or a traceback."""
    text = " ".join(str(error).split())
    if not isinstance(error, KNNLogitsError):
        text = "the server failed on this request: try again with less text"
    elif not isinstance(error, (RequestError, LimitError)) and ("/" in text or "\\" in text):
        text = f"this failed ({type(error).__name__}): change the settings or the text"
    first, (before, colon, _) = text.partition(" ")[0], text.partition(": ")
    named = bool(colon) and ("." in before or " " not in before)
    if first not in SIGNS and "." not in first and not named:  # the name of a file keeps its case
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
