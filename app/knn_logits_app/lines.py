"""Reads pairs that a visitor typed. Line n of one text is the source of line n of the other."""

from __future__ import annotations

from typing import Any

from knn_logits import Document, LimitError
from knn_logits_app.requests import RequestError, text_of

NAMES = ("box of the sources", "box of the targets")


def pairs_of(sources: Any, targets: Any, *, most: int) -> list[Document]:
    """Returns the pairs of two texts, without lines that are blank in both.

    Args:
        sources: The text of the sources, one on each line.
        targets: The text of the targets, with the same number of lines.
        most: The most characters that both texts may have together.

    Raises:
        LimitError: when the texts have more characters.
        RequestError: when a line has a source or a target, but not both.
    """
    texts = [
        text_of(text, name, most=most) for text, name in zip((sources, targets), NAMES, strict=True)
    ]
    if sum(map(len, texts)) > most:
        raise LimitError(
            f"both texts together have more than the {most:,} characters allowed: shorten them"
        )
    read, written = ([line.strip() for line in text.strip().split("\n")] for text in texts)
    if len(read) != len(written):
        raise RequestError(
            f"There are {len(read):,} sources and {len(written):,} targets: write each on its own "
            "line, and as many targets as sources."
        )
    found = []
    for number, (source, target) in enumerate(zip(read, written, strict=True), start=1):
        if not source and not target:
            continue
        if not source or not target:
            raise RequestError(f"Line {number:,} is empty in one of the boxes: fill it in both.")
        found.append(Document(target, f"line {number}", title=f"Line {number}", source=source))
    return found
