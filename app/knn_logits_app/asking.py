"""What an answer on the page asks for by itself: to go on another way, or without a document.

It comes from a browser, so nothing of it is believed.
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
    """An answer that is wanted anew.

    Attributes:
        kind: "branch" begins with given tokens, "without" leaves documents out.
        values: Those with which the answer was asked for before.
        begun: The tokens with which the answer begins.
        without: Ids of the documents that are left out.
        note: What the page says of it, as a visitor sees it.
    """

    kind: str
    values: Sequence[Any]
    begun: tuple[int, ...]
    without: tuple[str, ...]
    note: tuple[str, ...]


def ask_of(content: Any, number: int) -> Ask:
    """What a browser asks for, checked.

    Args:
        content: What it sent.
        number: Values that asking for an answer takes.

    Raises:
        RequestError: when it makes no sense.
    """
    if not isinstance(content, dict) or content.get("kind") not in KINDS:
        raise RequestError("This cannot be asked for.")
    values = content.get("values")
    if not isinstance(values, list) or len(values) != number:
        raise RequestError("This cannot be asked for.")
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
        raise RequestError("This cannot be asked for.")
    return value
