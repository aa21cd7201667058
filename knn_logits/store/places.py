"""Places in a document, which are pages, headings or lines, stored in the document's metadata.

A place is counted in tokens from the document's first token, so it stays right when the document
moves within the datastore. Places that make no sense are ignored, as if there were none.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

# A name that a field of a corpus does not have by chance.
PLACES = "@places"
_LONGEST_NAME = 100
_DOCUMENTS_KEPT = 256


@dataclass(frozen=True)
class TokenPlace:
    """A place in a document's tokens.

    Attributes:
        start: The place's first token, counted from 0 in the document.
        name: The name of the place, such as "page 12", "line 307" or a heading.
        fragment: The part after `#` that makes the document's uri lead there; may be empty.
    """

    start: int
    name: str
    fragment: str


def places_value(places: Iterable[tuple[int, str, str]]) -> list[list[int | str]]:
    """Converts places to the form in which a document's metadata holds them under `PLACES`."""
    return [[start, name, *([fragment] if fragment else [])] for start, name, fragment in places]


def place_at(metadata: str | None, token: int) -> TokenPlace | None:
    """Finds the place of a document that a token is in.

    Args:
        metadata: The document's metadata, as JSON.
        token: The token, counted from 0 in the document.

    Returns:
        The place. None if the document has no places, or the token is before the first one.
    """
    if metadata is None or PLACES not in metadata:
        return None
    places = _places(metadata)
    number = bisect_right(places, token, key=lambda one: one.start) - 1
    return places[number] if number >= 0 else None


@lru_cache(maxsize=_DOCUMENTS_KEPT)
def _places(metadata: str) -> tuple[TokenPlace, ...]:
    try:
        content = json.loads(metadata)[PLACES]
        found = [
            TokenPlace(int(one[0]), str(one[1])[:_LONGEST_NAME], str(*one[2:3])[:_LONGEST_NAME])
            for one in content
        ]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return ()
    return tuple(sorted(found, key=lambda one: one.start))
