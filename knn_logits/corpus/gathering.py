"""Gathers blocks into the text of a document, and names the places of its headings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from knn_logits.corpus.blocks import Block
from knn_logits.corpus.parsers import Text
from knn_logits.corpus.rows import Row
from knn_logits.store.blocks import HEADINGS, MAX_BLOCKS

# The most characters of a row, apart from the rest of its last line. Each part of a larger file is
# a row with the file's id, so that memory is bounded and one name removes all parts.
LARGEST_ROW = 4 << 20
_LINE = re.compile(r"line ([0-9]{1,15})")


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
        """Takes a block, and yields the rows that are full."""
        if not part.text:
            return
        place = part.place, part.fragment
        if place == self._place:
            place = "", ""
        elif part.place:
            self._place = place
        if part.kind or place[0]:
            self._blocks.append(Block(self._size, part.kind, *place))
        self._texts.append(part.text)
        self._size += len(part.text)
        while self._size > LARGEST_ROW:
            whole = "".join(self._texts)
            end = whole.rfind("\n", 0, LARGEST_ROW) + 1 or LARGEST_ROW
            yield self._row_of(whole[:end])
            self._texts, self._size = [whole[end:]], len(whole) - end
        if len(self._blocks) >= MAX_BLOCKS:
            yield self._row_of("".join(self._texts))
            self._texts, self._size = [], 0

    def rest(self) -> Iterator[Row]:
        """Yields the rest of the text as the last row, if there is any."""
        text = "".join(self._texts)
        if text.strip() or not self._part:
            yield self._row_of(text)

    def _row_of(self, text: str) -> Row:
        end = len(text)
        inside = [block for block in self._blocks if block.start < end]
        after = [
            replace(block, start=block.start - end) for block in self._blocks if block.start >= end
        ]
        named = next((block for block in reversed(inside) if block.place), Block(0, ""))
        if line := _LINE.fullmatch(named.place):
            passed = text.count("\n", named.start)
            named = replace(named, place=f"line {int(line[1]) + passed}")
        if not after or after[0].start > 0:
            after.insert(0, Block(0, ""))
        if not after[0].place:
            after[0] = replace(after[0], place=named.place, fragment=named.fragment)
        self._blocks = after
        part, self._part = self._part, True
        fields = {**self._row.fields, "text": text}
        return replace(self._row, fields=fields, blocks=_told_apart(inside), part=part)


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
