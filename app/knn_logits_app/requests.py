"""Checks every value that a visitor's request contains, whether it comes from the page or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError
from pydantic.dataclasses import dataclass

from knn_logits import KNNLogitsError
from knn_logits.errors import ConfigError, LimitError
from knn_logits.hosting import check_settings, settings_for

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
# Their names on the page, and those of the fields of `Writing` that a visitor sets.
LABELS = {
    "lmbda": "Strength of all words (λ)",
    "k": "Passages consulted (k)",
    "temperature": "Sharpness (temperature τ)",
    "new_tokens": "Maximum new tokens",
    "sentence": "End with the sentence",
    "sampling_temperature": "Randomness",
    "seed": "Seed",
}


@dataclass(frozen=True)
class Lookup:
    """The datastores to search, and the settings; for absent ones the datastore's values hold."""

    stores: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # the ids or titles of documents that are ignored


@dataclass(frozen=True)
class Writing:
    """A request to continue a text."""

    prompt: str
    lookup: Lookup
    compare: bool = False
    new_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 60
    sentence: bool = False
    sampling_temperature: Annotated[float, Field(ge=0, le=100)] = 0.0  # 0: the likeliest tokens
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class Rewriting(BaseModel):
    """A request to write an answer again without documents, of which one is `named`."""

    values: list[Any]
    without: Annotated[list[str], Field(min_length=1, max_length=_MOST_WITHOUT)]
    named: Annotated[str, Field(max_length=_MOST_LINE)]


_Content = TypeVar("_Content", bound=BaseModel)


def content_of(kind: type[_Content], content: Any) -> _Content:
    """Reads what a script of the page sent."""
    try:
        return kind.model_validate(content)
    except ValidationError:
        raise RequestError(_NONSENSE) from None


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


def lookup_of(stores: Any, settings: Mapping[str, Any]) -> Lookup:
    """Checks the datastores to search, and the settings. A setting that is None is left out."""
    if not isinstance(stores, Sequence) or not all(isinstance(name, str) for name in stores):
        raise RequestError(_NONSENSE)
    if not stores:
        raise RequestError("Choose at least one of the documents.")
    if len(stores) > MOST_STORES:
        raise LimitError(
            f"{len(stores)} datastores are chosen, but only {MOST_STORES} are allowed: choose fewer"
        )
    try:
        return Lookup(tuple(dict.fromkeys(stores)), check_settings(settings, "page"))
    except ConfigError as error:
        name, _, rest = str(error).partition(" ")
        raise RequestError(f"{LABELS.get(name, name)} {rest}") from None


def writing_of(prompt: Any, lookup: Lookup, compare: Any = False, **how: Any) -> Writing:
    """Checks every setting of a request to continue a text."""
    text = text_of(prompt, "prompt")
    try:
        return Writing(text, lookup, compare is True, **how)
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(f"{LABELS[str(first['loc'][-1])]}: {first['msg']}.") from None


def is_web(uri: str | None) -> bool:
    """Whether a document's address leads to the web; only such a one becomes a link."""
    if uri is None or not uri.lower().startswith(("http://", "https://")):
        return False
    try:
        return bool(urlsplit(uri).hostname)
    except ValueError:
        return False


def friendly(error: BaseException) -> str:
    """Returns one line about an error for a visitor, without a path or a traceback."""
    text = " ".join(str(error).split())
    if not isinstance(error, KNNLogitsError):
        text = "The server failed on this request: try again with less text"
    elif isinstance(error, (RequestError, LimitError)):
        text = text[:1].upper() + text[1:]
    elif "/" in text or "\\" in text:
        text = f"This failed ({type(error).__name__}): change the settings or the text"
    return text if text.endswith((".", "!", "?")) else text + "."
