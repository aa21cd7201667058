"""Gathers pieces of text into rows: one for each document, or several for a very large one.

Each part of a large file is a row, so that only a few million characters are in memory. All parts
have the file's id, so that one name removes the file or leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from knn_logits.corpus.rows import Place, Row

# The most characters of a row, apart from the rest of its last line.
LARGEST = 4 << 20
# Characters between two places of a plain text, which is about a paragraph.
_APART = 400
_LONGEST_HEADING = 80
_BLANK = re.compile(r"[^\S\n]*\n")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")


class Gathering:
    """Gathers text that arrives in blocks, each with its place, into rows.

    Args:
        row: A row that every result copies, apart from text and places.
    """

    def __init__(self, row: Row) -> None:
        self._row = row
        self._texts: list[str] = []
        self._size = 0
        self._places: list[Place] = []
        self._last = Place(0, "")
        self._several = False

    def add(self, text: str, place: str = "", fragment: str = "") -> Iterator[Row]:
        """Takes a block, and yields the rows that are full."""
        if place and place != self._last.name:
            self._last = Place(self._size, place, fragment)
            self._places.append(self._last)
        self._texts.append(text)
        self._size += len(text)
        while self._size > LARGEST:
            whole = "".join(self._texts)
            end = whole.rfind("\n", 0, LARGEST) + 1 or LARGEST
            yield self._made(whole[:end], end)
            self._texts, self._size = [whole[end:]], len(whole) - end

    def rest(self) -> Iterator[Row]:
        """Yields the rest of the text as the last row, if there is any."""
        text = "".join(self._texts)
        if text.strip() or not self._several:
            yield self._made(text, len(text))

    def _made(self, text: str, end: int) -> Row:
        here = [one for one in self._places if one.start < end]
        after = [
            Place(one.start - end, one.name, one.fragment)
            for one in self._places
            if one.start >= end
        ]
        if here and (not after or after[0].start > 0):
            after.insert(0, Place(0, here[-1].name, here[-1].fragment))
        self._places = after
        row = self._row.with_text(text, here, part=self._several)
        self._several = True
        return row


def plain_rows(pieces: Iterable[str], row: Row, *, headings: bool = False) -> Iterator[Row]:
    """Yields the rows of a plain text. Their places are its lines, or its headings.

    Args:
        pieces: The text, in pieces.
        row: A row that every result copies, apart from text and places.
        headings: Whether the text is Markdown, whose headings are its places.
    """
    line, head, several = 1, Place(0, ""), False
    for text in _cut(pieces):
        places: list[Place] = []
        if headings:
            places = _headings(text, head)
            head = places[-1] if places else head
        if not places:
            places = _lines(text, line)
        # A short text is a single place.
        known = places if len(places) > 1 or several else []
        if text.strip() or not several:
            yield row.with_text(text, known, part=several)
        line += text.count("\n")
        several = True


def _cut(pieces: Iterable[str]) -> Iterator[str]:
    waiting, size = [], 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        while size > LARGEST:
            whole = "".join(waiting)
            end = whole.rfind("\n", 0, LARGEST) + 1 or LARGEST
            yield whole[:end]
            waiting, size = [whole[end:]], len(whole) - end
    yield "".join(waiting)


def _lines(text: str, first: int) -> list[Place]:
    """Returns some lines of a text, of which none but the first is blank.

    Many tokenizers have a token for several line breaks. A place that began within such a token
    could not be told from one before it.

    Args:
        text: The text.
        first: The number of its first line.
    """
    places = [Place(0, f"line {first}")]
    line, start = first, 0
    while (end := text.find("\n", start) + 1) and end < len(text):
        line, start = line + 1, end
        if start - places[-1].start >= _APART and not _BLANK.match(text, start):
            places.append(Place(start, f"line {line}"))
    return places


def _headings(text: str, before: Place) -> list[Place]:
    """Returns the headings of Markdown. The text before the first one has the place `before`."""
    places = [Place(0, before.name, before.fragment)] if before.name else []
    start, fence = 0, ""
    for line in text.splitlines(keepends=True):
        fenced = _FENCE.match(line)
        if fenced and not fence:
            fence = fenced[1]
        elif fenced and fenced[1].startswith(fence):
            fence = ""
        found = None if fence or fenced else _HEADING.match(line.rstrip("\n"))
        name = " ".join(found[1].split()) if found else ""
        if name:
            short = name if len(name) <= _LONGEST_HEADING else f"{name[: _LONGEST_HEADING - 1]}…"
            slug = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")[:100]
            places.append(Place(start, f"“{short}”", slug))
        start += len(line)
    return places
