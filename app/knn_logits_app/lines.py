"""Pairs as people type them: line n of one text is the source of line n of the other."""

from __future__ import annotations

from typing import Any

from knn_logits import Document, LimitError
from knn_logits_app.requests import RequestError, text_of

NAMES = ("box of the sources", "box of the targets")


def pairs_of(sources: Any, targets: Any, *, most: int) -> list[Document]:
    """The pairs of two texts; lines that are blank in both are passed over.

    Args:
        sources: Text.
        targets: Text of as many lines.
        most: Characters that both may have together.

    Raises:
        LimitError: when they have more.
        RequestError: when a line has no other.
    """
    texts = [
        text_of(text, name, most=most) for text, name in zip((sources, targets), NAMES, strict=True)
    ]
    if sum(map(len, texts)) > most:
        raise LimitError(f"both texts together have more than the {most:,} characters allowed")
    read, written = ([line.strip() for line in text.strip().split("\n")] for text in texts)
    if len(read) != len(written):
        raise RequestError(
            f"There are {len(read):,} sources and {len(written):,} targets: write one a line, and "
            "as many of both."
        )
    found = []
    for number, (source, target) in enumerate(zip(read, written, strict=True), start=1):
        if not source and not target:
            continue
        if not source or not target:
            raise RequestError(f"Line {number:,} is empty in one of the boxes.")
        found.append(Document(target, f"line {number}", title=f"Line {number}", source=source))
    return found
