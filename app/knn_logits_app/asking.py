"""Checks a visitor's request to write an answer again, in another way or without a document.

The request comes from a browser, so every part of it is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knn_logits_app.requests import RequestError, text_of, whole

KINDS = ("branch", "without")
_MOST_BEGUN, _MOST_WITHOUT, _MOST_NOTE = 4096, 16, 200


@dataclass(frozen=True)
class Ask:
    """A request to write an answer again.

    Attributes:
        kind: "branch" begins with given tokens, and "without" ignores documents.
        values: The values of the form for the earlier answer.
        begun: The tokens with which the answer begins.
        without: Ids or titles of the documents that are ignored.
        note: The words that the page shows about the request.
    """

    kind: str
    values: Sequence[Any]
    begun: tuple[int, ...]
    without: tuple[str, ...]
    note: tuple[str, ...]


def ask_of(content: Any, number: int) -> Ask:
    """Checks a browser's request.

    Args:
        content: The content that the browser sent.
        number: Number of values of the form.

    Raises:
        RequestError: when the request makes no sense.
    """
    if not isinstance(content, dict) or content.get("kind") not in KINDS:
        raise RequestError("The page sent a request that makes no sense: reload the page.")
    values = content.get("values")
    if not isinstance(values, list) or len(values) != number:
        raise RequestError("The page sent a request that makes no sense: reload the page.")
    begun = _list(content.get("begun"), _MOST_BEGUN)
    without = _list(content.get("without"), _MOST_WITHOUT)
    note = _list(content.get("note"), 2)
    return Ask(
        content["kind"],
        values,
        tuple(whole(one, "A token", 0, 2**31) for one in begun),
        tuple(text_of(one, "document") for one in without),
        tuple(text_of(one, "note", most=_MOST_NOTE) for one in note),
    )


def _list(value: Any, most: int) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > most:
        raise RequestError("The page sent a request that makes no sense: reload the page.")
    return value
