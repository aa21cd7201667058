"""Writes the rows of CSV as lines that name their cells, since a row alone says little."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator

_DELIMITERS = (",", ";", "\t", "|")
# A longer line is no row, and would have to be held in memory.
_LONGEST = 1 << 20
_NUMBER = re.compile(r"[-+(]?[\d.,]*\d[\d.,]*\)?%?")


def dialect_of(pieces: Iterable[str]) -> tuple[str, list[str]] | None:
    """The delimiter and the names of the columns; None for text that is no table with names."""
    rows = _lines(pieces)
    try:
        first = next(rows, "")
        delimiter = max(_DELIMITERS, key=first.count)
        names = [_squeezed(name) for name in next(csv.reader([first], delimiter=delimiter), [])]
        if len(names) < 2 or len(set(names)) < len(names):
            return None
        if not all(names) or any(map(_NUMBER.fullmatch, names)):
            return None
        widths = {len(row) for row in csv.reader(rows, delimiter=delimiter, strict=True) if row}
    except csv.Error:
        return None
    return (delimiter, names) if widths == {len(names)} else None


def named_rows(pieces: Iterable[str], delimiter: str, names: list[str]) -> Iterator[str]:
    """Yields the first line as it is, and a line "- name: cell; name: cell" for each row."""
    rows = _lines(pieces)
    yield next(rows, "")
    reader, number = csv.reader(rows, delimiter=delimiter), 0
    for row in reader:
        cells = zip(names, map(_squeezed, row), strict=False)
        named = "; ".join(f"{name}: {cell}" for name, cell in cells if cell)
        # A row of several lines is followed by as many, so that lines keep their numbers.
        yield (f"- {named}" if named else "") + "\n" * (reader.line_num - number)
        number = reader.line_num


def _squeezed(cell: str) -> str:
    return " ".join(cell.split())


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from (f"{line}\n" for line in lines)
        if len(rest) > _LONGEST:
            raise csv.Error("a line is too long")
    if rest:
        yield rest
