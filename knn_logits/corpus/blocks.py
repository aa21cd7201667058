"""`Block` is a part of a document, such as a heading or a table row; the blocks of plain text."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from knn_logits.store.blocks import MAX_BLOCKS

# A longer paragraph of plain text is cut between two lines, and longer white space anywhere.
_LONGEST_PARAGRAPH, _LONGEST_SPACE = 1000, 1 << 20
_LONGEST_NAME = 80
_ITEM = re.compile(r"\s{0,12}(?:[-*+•▪◦●–]|\(?\d{1,3}[.)]|[a-z]\))[ \t]+\S")
_UNDERLINE = re.compile(r"[ \t]{0,3}([=\-~^\"'`#*+])\1{2,}[ \t]*\n?")
# A heading begins with a capital, perhaps behind a number.
HEADING_START = re.compile(r"(?:\d{1,2}(?:\.\d{1,2})*[.)]?\s+)?[^\W\d_a-z]")
_NO_HEADING = (".", ",", ";", ":", "!", "-", "…")
TEXT_LINE = 60


@dataclass(frozen=True)
class Block:
    """A part of a document's text, which ends where the next one starts.

    Attributes:
        start: The block's first character, counted from 0 in the document's text.
        kind: The block's kind as HTML names it: `h1` to `h6`, `p`, `li`, `pre`, `tr`, or `th` for
            the row that names a table's columns. It is empty if the block continues the one before
            at another place.
        place: The name of the place for a reader, such as `page 12` or `line 307`. It is empty if
            the block is at the place of the one before.
        fragment: The part after `#` that makes the document's uri lead there; may be empty.
    """

    start: int
    kind: str = "p"
    place: str = ""
    fragment: str = ""


def quoted(name: str) -> str:
    """Makes a heading the name of a place; empty for an empty one."""
    name = " ".join(name.split())
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    return f"“{short}”" if short else ""


def text_blocks(text: str) -> tuple[Block, ...]:
    """Returns the blocks of a plain text."""
    if "\n" not in text:
        return (Block(0),)
    blocks, start = [], 0
    for kind, part, _ in itertools.islice(prose(io.StringIO(text)), MAX_BLOCKS):
        if kind:
            blocks.append(Block(start, kind))
        start += len(part)
    return tuple(blocks)


def paragraphs(text: Iterable[str]) -> Iterator[tuple[list[str], int, bool]]:
    """Yields the lines of each paragraph with the blank ones after it, and their first number.

    A very long paragraph comes in parts. The last value is whether a part begins a paragraph.
    """
    lines: list[str] = []
    number, row, size, begins = 1, 1, 0, True
    for line in text:
        ended = bool(lines) and lines[-1].isspace()
        full = size > (_LONGEST_SPACE if line.isspace() else _LONGEST_PARAGRAPH)
        if full or (ended and not line.isspace()):
            yield lines, number, begins
            lines, number, size, begins = [], row, 0, ended
        lines.append(line)
        size += len(line)
        row += line.endswith("\n")
    if lines:
        yield lines, number, begins


def prose(text: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yields the kind, the text and the first line of each block of the lines of plain text."""
    parts = itertools.chain(paragraphs(text), [([""], 0, True)])
    for (lines, number, begins), (following, _, _) in itertools.pairwise(parts):
        level, end = _heading(lines, following) if begins else ("", 0)
        if end:
            yield level, "".join(lines[:end]), number
        kind, start = "p" if begins else "", end
        kind = "" if lines[0].isspace() else kind
        for row in range(end, len(lines)):
            if _ITEM.match(lines[row]):
                if row > start:
                    yield kind, "".join(lines[start:row]), number + start
                kind, start = "li", row
        if start < len(lines):
            yield kind, "".join(lines[start:]), number + start


def _heading(lines: list[str], following: list[str]) -> tuple[str, int]:
    """Returns the level of the heading that a paragraph begins with, and its number of lines.

    Without a line under it, a heading is a short line that is not a sentence, above a longer text.
    """
    over = len(lines) > 2 and _UNDERLINE.fullmatch(lines[0]) is not None
    sign = _UNDERLINE.fullmatch(lines[over + 1]) if len(lines) > over + 1 else None
    name, below = [line.strip() for line in [*lines[over:], ""][:2]]
    if len(name) > _LONGEST_NAME:
        return "", 0
    if sign is not None and any(map(str.isalnum, name)) and len(below) >= len(name) // 2:
        level, end = "h1" if sign[1] == "=" else "h2", over + 2
        rest = "".join(lines[end:]).strip()
    else:
        if over or not HEADING_START.match(lines[0]) or name.endswith(_NO_HEADING):
            return "", 0
        alone = len("".join(following).strip()) > len(name) and not _ITEM.match(name)
        above = len(below) >= max(TEXT_LINE, 2 * len(name)) and below[:1].isupper()
        if not (above if below else alone):
            return "", 0
        level, end, rest = "h3", 1, below
    # The blank lines after a heading belong to it.
    return level, end if rest else len(lines)
