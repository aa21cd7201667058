"""Gathers blocks into the text of a document, and names the places of its headings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from knn_logits.corpus.blocks import Block
from knn_logits.corpus.parsers import Text
from knn_logits.corpus.rows import Row
from knn_logits.store.blocks import HEADINGS, MAX_BLOCKS

# The most characters of a row, unless a single block has more. Each part of a larger file is a row
# with the file's id, so that memory is bounded and one name removes all parts.
LARGEST_ROW = 4 << 20


class Gathering:
    """Gathers the texts of blocks into copies of a row."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._texts: list[str] = []
        self._size = 0
        self._blocks: list[Block] = []
        self._place = "", ""
        self._part = False

    def add(self, part: Text) -> Iterator[Row]:
        """Takes a block, and yields the row that is full before it."""
        if not part.text:
            return
        large = self._size + len(part.text) > LARGEST_ROW or len(self._blocks) >= MAX_BLOCKS
        if large and self._texts:
            yield self._taken()
        place = (part.place, part.fragment) if part.place else self._place
        named = place[0] and (place != self._place or not self._blocks)
        if part.kind or named:
            self._blocks.append(Block(self._size, part.kind, *(place if named else ())))
        self._place = place
        self._texts.append(part.text)
        self._size += len(part.text)

    def rest(self) -> Iterator[Row]:
        """Yields the rest of the text as the last row, if there is any."""
        if any(text.strip() for text in self._texts) or not self._part:
            yield self._taken()

    def _taken(self) -> Row:
        fields = {**self._row.fields, "text": "".join(self._texts)}
        blocks = _told_apart(self._blocks)
        row = replace(self._row, fields=fields, blocks=blocks, part=self._part)
        self._texts, self._size, self._blocks, self._part = [], 0, [], True
        return row


def _told_apart(blocks: list[Block]) -> list[Block]:
    """The blocks with those headings that have one name named after the heading above."""
    counts = Counter(block.place for block in blocks if block.kind in HEADINGS)
    above: list[tuple[str, str]] = []
    told = []
    for block in blocks:
        if block.kind in HEADINGS and block.place:
            while above and above[-1][0] >= block.kind:
                above.pop()
            place = block.place
            if above and counts[place] > 1 and place.startswith("“"):
                place = f"{above[-1][1][:-1]}: {place[1:]}"
            above.append((block.kind, block.place))
            block = replace(block, place=place)
        told.append(block)
    return told
