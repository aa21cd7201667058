"""Where in its file a passage stands: pages, headings or lines, kept among a document's metadata.

They are numbered in tokens from the document's first one, so that they hold wherever the document
comes to stand. A datastore without them, or with a stranger's that make no sense, has no places.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

# A name that no field of a corpus has by chance.
PLACES = "@places"
_LONGEST_NAME = 100
_DOCUMENTS_KEPT = 256


@dataclass(frozen=True)
class TokenPlace:
    """A place in a document's tokens.

    Attributes:
        start: Its first token, counted from 0 in the document.
        name: Such as "page 12", "line 307" or a heading.
        fragment: What makes the document's uri lead there; may be empty.
    """

    start: int
    name: str
    fragment: str


def places_value(places: Iterable[tuple[int, str, str]]) -> list[list[int | str]]:
    """Places as a document's metadata holds them under `PLACES`."""
    return [[start, name, *([fragment] if fragment else [])] for start, name, fragment in places]


def place_at(metadata: str | None, token: int) -> TokenPlace | None:
    """The place of a document in which a token stands.

    Args:
        metadata: The document's, as JSON.
        token: Counted from 0 in the document.

    Returns:
        None where the document has no places, or the token stands before the first.
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
