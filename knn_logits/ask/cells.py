"""Finds the cell of a row that a question asks for by the name of its column."""

from __future__ import annotations

import re

from knn_logits.ask.ranking import content_words, words_of

# "Name: Oda; Office: B-204", as the rows of CSV are read.
_FIELD = re.compile(r"(?:^|;\s)(\w[\w .-]{0,40}):\s([^;|]*)")
_CELL = re.compile(r"(?:[^|\s]|\s(?!\s))+")


def cell_of_question(
    question: str, lead: str, sentence: str, language: str
) -> tuple[int, int] | None:
    """Where the cell stands whose column the question names, if it does not name the cell too.

    There is none where several are named, and in a sentence that is no row.
    """
    words = set(content_words(question, language))
    spans = [
        span
        for name, span in _cells(lead, sentence)
        if not words.isdisjoint(words_of(name, language))
        and words.isdisjoint(words_of(sentence[slice(*span)], language))
    ]
    return spans[0] if len(spans) == 1 else None


def _cells(lead: str, sentence: str) -> list[tuple[str, tuple[int, int]]]:
    """The cells of a row with the names of their columns."""
    fields = list(_FIELD.finditer(sentence))
    if len(fields) > 1 and fields[0].start() == 0:
        return [(field[1], field.span(2)) for field in fields]
    names, cells = (
        [cell for cell in _CELL.finditer(row) if cell[0].strip()] for row in (lead, sentence)
    )
    if len(cells) < 2 or len(names) != len(cells):
        return []
    return [(name[0], cell.span()) for name, cell in zip(names, cells, strict=True)]
