"""The blocks of a stored document: headings, paragraphs, list items, table rows and code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

# The name of the blocks in a document's metadata. A field of a corpus with this name is dropped.
BLOCKS = "@blocks"
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
# The kinds of blocks, named as in HTML. An empty kind continues the block before at another place.
KINDS = frozenset((*HEADINGS, "p", "li", "th", "tr", "pre", ""))
# The most blocks of a document.
MAX_BLOCKS = 1 << 16
_LONGEST_PLACE = 100
# An image of Markdown, and a link around its text. An address has one of the three signs. Markdown
# may contain the tags of HTML for both.
_IMAGE = re.compile(r"!\[[^\[\]]*\]\([^()]*\)")
_TAG = re.compile(r"<(?:img|a)\s[^<>]+>|</a>")
_LINK = re.compile(r"\[([^\[\]]*)\]\((?=[^()]*[/#.])[^()]*\)")


def unlinked(text: str) -> str:
    """A text of Markdown without its images and the addresses of its links."""
    return _LINK.sub(r"\1", _IMAGE.sub("", _TAG.sub("", text)))


def with_names(names: Sequence[str], cells: Sequence[str]) -> str:
    """The cells of a table's row that are not empty, each after the name of its column."""
    pairs = zip(names, cells, strict=False)
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in pairs if cell)


@dataclass(frozen=True)
class TokenPlace:
    """A page, a heading or a line, counted from the document's first token."""

    start: int
    name: str
    fragment: str  # the part after `#` that makes the document's uri lead there; may be empty

    def within(self, uri: str | None) -> str | None:
        """The address of a document, so that it leads to this place."""
        return f"{uri}#{self.fragment}" if uri and self.fragment and "#" not in uri else uri


@dataclass(frozen=True)
class TokenBlock:
    """A block of a stored document. Its numbers of blocks count from 0 in the same document."""

    kind: str  # as HTML names it: `h1` to `h6`, `p`, `li`, `pre`, `tr`, or `th` for the header row
    start: int  # position of its first token, counted from the document's first
    end: int  # position after its last token
    headings: tuple[int, ...] = ()  # the numbers of those above it, the highest level first
    # The number of the block that it has to be read with: a table's header, a list's introduction
    lead: int | None = None


def blocks_value(rows: Iterable[tuple[int, Any]]) -> dict[str, object]:
    """The metadata of blocks and their first tokens; none for one paragraph at no place."""
    listed: list[list[object]] = []
    for start, block in rows:
        row = [start, block.kind, block.place, block.fragment]
        while not row[-1] and len(row) > 2:
            row.pop()
        listed.append(row)
    plain = len(listed) == 1 and listed[0][1:] == ["p"]
    return {} if plain or not listed else {BLOCKS: listed[:MAX_BLOCKS]}


@lru_cache(maxsize=256)
def parsed(
    metadata: str | None, length: int
) -> tuple[tuple[TokenBlock, ...], tuple[TokenPlace, ...]]:
    """The valid blocks and places of a document of `length` tokens; without any, one paragraph."""
    try:
        rows = json.loads(metadata or "")[BLOCKS][:MAX_BLOCKS]
    except (ValueError, TypeError, KeyError, RecursionError):
        rows = []
    blocks: list[TokenBlock] = []
    places: list[TokenPlace] = []
    above: list[int] = []
    lead: int | None = None
    last = 0
    for row in rows:
        match row:
            case [int(start), str(kind), *names] if kind in KINDS and last <= start < length:
                last = start
            case _:
                continue
        if names and names[0]:
            name, fragment = (str(part)[:_LONGEST_PLACE] for part in (*names, "")[:2])
            places.append(TokenPlace(start, name, fragment))
        if not kind and blocks:
            continue
        kind = kind or "p"
        if blocks:
            blocks[-1] = replace(blocks[-1], end=start)
        if kind in HEADINGS:
            while above and blocks[above[-1]].kind >= kind:
                above.pop()
        led = lead is not None and (kind, blocks[lead].kind) in (("li", "p"), ("tr", "th"))
        blocks.append(TokenBlock(kind, start, length, tuple(above), lead if led else None))
        if kind in HEADINGS:
            above.append(len(blocks) - 1)
        if kind not in ("li", "tr", "pre"):
            lead = None if kind in HEADINGS else len(blocks) - 1
    return tuple(blocks) or (TokenBlock("p", 0, length),), tuple(places)
