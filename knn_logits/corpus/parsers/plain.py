"""Reads plain text and source code, whose places are lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from knn_logits.corpus.blocks import paragraphs, prose
from knn_logits.corpus.parsers import Text


def read(lines: Iterable[str]) -> Iterator[Text]:
    """Reads prose, with the headings and lists that are plain without markup."""
    return placed(prose(lines))


def read_lines(lines: Iterable[str]) -> Iterator[Text]:
    """Reads any other text as paragraphs."""
    return placed(
        ("p" if begins else "", "".join(part), number) for part, number, begins in paragraphs(lines)
    )


def placed(blocks: Iterable[tuple[str, str, int]]) -> Iterator[Text]:
    """Names the lines of blocks, except of a text that is a single line."""
    first: Text | None = None
    for kind, text, number in blocks:
        block = Text(text, kind, f"line {number}")
        if number == 1 and first is None and "\n" not in text.strip():
            first = block  # it may be the only one
            continue
        if first is not None:
            yield first if block.text.strip() else first._replace(place="")
            first = None
        yield block
    if first is not None:
        yield first._replace(place="")
