"""Reads CSV as lines that name their cells, since a row alone says little.

Python's `csv.Sniffer` takes commas of prose for delimiters, so this tries each delimiter and takes
that with the most rows of one width.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator

from knn_logits.corpus.parsers import Left, Part, Text
from knn_logits.corpus.parsers.prose import read_lines
from knn_logits.corpus.rows import LONGEST_ROW

_DELIMITERS = (",", ";", "\t", "|")
_SEPARATOR = re.compile(r"sep=(.)\n?", re.IGNORECASE)
# The rows that are looked at, and the part of them that has as many cells as the header.
_SAMPLE, _USUAL_SHARE = 1000, 0.6
# The most rows above that with the names.
_MOST_ROWS_ABOVE = 10
# The names of columns stand in every row, so they are short and few.
_LONGEST_NAME, _MOST_COLUMNS = 60, 500
_NUMBER = re.compile(r"[-+(]?[.,]*\d[\d.,]*\)?%?")
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d")


def read(lines: Iterator[str]) -> Iterator[Part]:
    """Reads a table with named columns, or else its lines as they are."""
    csv.field_size_limit(LONGEST_ROW)  # Python's own is 131,072
    sample = list(itertools.islice(lines, _SAMPLE))
    given = _SEPARATOR.fullmatch(sample[0]) if sample else None
    skipped = int(given is not None)
    found = _table(sample[skipped:], (given[1],) if given else _DELIMITERS)
    rest = itertools.chain(sample, lines)
    if found is None:
        yield Left("", "read as plain text: no first row names the columns of a table", False)
        yield from read_lines(rest)
        return
    delimiter, above, names = found
    reader = csv.reader(itertools.islice(rest, skipped, None), delimiter=delimiter)
    line = skipped + 1
    try:
        for number, row in enumerate(reader):
            cells = [" ".join(cell.split()) for cell in row]
            # Above the names stand a title and notes.
            kind = "p" if number < above else "th" if number == above else "tr"
            text = f"- {_named(names, cells)}" if kind == "tr" else delimiter.join(cells)
            if any(cells):
                yield Text(f"{text.strip(delimiter)}\n", kind, f"line {line}")
            line = skipped + reader.line_num + 1
    except csv.Error as error:
        yield Left(f"line {line}", f"the table is damaged from here on: {error}")


def _named(names: list[str], cells: list[str]) -> str:
    if not _fits(cells, len(names)):  # such as a total or a footnote: no cell is sure of its column
        return "; ".join(filter(None, cells))
    pairs = zip(names, cells, strict=False)
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in pairs if cell)


def _fits(row: list[str], width: int) -> bool:
    """Whether a row has a cell for each column, and at most empty ones after them."""
    return len(row) >= width and not any(row[width:])


def _table(lines: list[str], delimiters: tuple[str, ...]) -> tuple[str, int, list[str]] | None:
    """The delimiter, the number of rows above that of the names, and the names."""
    best: tuple[float, int, tuple[str, int, list[str]]] | None = None
    for delimiter in delimiters:
        try:
            # The last row of a sample may end within a quotation.
            rows = list(csv.reader(lines, delimiter=delimiter, strict=len(lines) < _SAMPLE))
        except csv.Error:
            continue
        for above, row in enumerate(rows[:_MOST_ROWS_ABOVE]):
            width = max((n for n, cell in enumerate(row, start=1) if cell.strip()), default=0)
            names = [" ".join(name.split())[:_LONGEST_NAME] for name in row[:width]]
            below = [row for row in rows[above + 1 :] if any(row)]
            share = sum(_fits(row, width) for row in below) / max(1, len(below))
            if share < _USUAL_SHARE or not _are_names(names):
                continue
            if best is None or (share, width) > best[:2]:
                best = share, width, (delimiter, above, names)
            break
    return best and best[2]


def _are_names(names: list[str]) -> bool:
    given = [name for name in names if name]
    numbers = [name for name in given if _NUMBER.fullmatch(name)]
    return (
        2 <= len(given) == len(set(given))
        and len(names) <= _MOST_COLUMNS
        and len(numbers) < len(given)
        and all(map(_YEAR.fullmatch, numbers))
    )
