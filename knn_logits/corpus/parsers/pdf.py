"""Reads PDF with pypdf: the text of each page, with its lines joined into paragraphs again."""

from __future__ import annotations

import itertools
import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from knn_logits.corpus.parsers import Left, Part, Text, clean
from knn_logits.corpus.rows import UnreadableError, first_line

# A line that ends before this share of the page's width ends its paragraph.
_FULL = 0.75
_NEW = re.compile(r"\s*(?:[-•●▪◦*–—]\s|\(?\d+[.)]\s|[A-Z][.)]\s|\(?[a-z]\)\s)")
# A page is printed with ligatures, and no question has one.
_LIGATURES = {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFB00, 0xFB07)}
# The cells of a table, the least number of its rows, and by how many characters they may differ.
_CELL = re.compile(r"\S+(?: \S+)*")
_ROWS, _ALIGNED = 3, 2
_Row: TypeAlias = list[re.Match[str]]
# A heading may have a number. More than two short lines are a list, verses or an address.
_HEADING = re.compile(r"(?:\d{1,2}(?:\.\d{1,2})*[.)]?\s+)?[^\W\d_a-z]")
_NO_HEADING = (".", ",", ";", ":", "!", "?", "-")
_MOST_HEADINGS = 2
# The number of lines at each edge that may be headers or footers, and the pages until they return.
_EDGE, _NEAR_PAGES = 2, 2
_TEXT_LINE = 60
_DIGITS = re.compile(r"[0-9]+")
_ENDS = (".", "!", "?", ":", ";", "”", '"', ")")


def read(stream: Any) -> Iterator[Part]:
    """Reads a PDF page by page. A paragraph may go on on the next page."""
    pages = _pages(stream)
    damaged: list[Left] = []
    empty = 0

    @lru_cache(2 * _NEAR_PAGES + 1)
    def lines_of(number: int) -> list[str]:
        try:
            text = pages[number - 1].extract_text() if 0 < number <= len(pages) else ""
        except (MemoryError, RecursionError, OSError):
            raise
        except Exception as error:  # a damaged page may make pypdf raise any exception
            damaged.append(Left(f"page {number}", f"damaged: {first_line(error)[:120]}"))
            text = ""
        return [line.strip() for line in _shown(text).split("\n")]

    last: Text | None = None  # waits for what follows it
    for number in range(1, len(pages) + 1):
        lines, left = _without_margins(number, lines_of)
        layout = _layout(pages[number - 1]).split("\n") if any(lines) else []
        layout = [line for line in layout if _squeezed(line) not in left]
        blocks = paragraphs(*_with_tables(lines, layout))
        empty += not blocks
        for row, (kind, words) in enumerate(blocks):
            goes_on = row == 0 and kind == "p" and last is not None and _goes_on(last, words)
            if last is not None:
                gap = " " if goes_on else _gap(last, kind, row == 0)
                yield last._replace(text=last.text + gap)
            kind = "" if goes_on else kind
            last = Text(words, kind, f"page {number}", f"page={number}")
    if last is not None:
        yield last._replace(text=f"{last.text}\n\n")
    yield from damaged
    if empty == len(pages) and not damaged:
        raise UnreadableError(
            f"its pages contain no text ({empty}), as in a scan: run OCR first, for example with "
            "ocrmypdf"
        )


def _goes_on(last: Text, words: str) -> bool:
    """Whether a page begins within a sentence."""
    cut = last.kind in ("p", "") and not last.text.endswith(_ENDS)
    return cut and (words[:1].islower() or len(last.text) >= _TEXT_LINE)


def _gap(last: Text, kind: str, on_new_page: bool) -> str:
    rows = ("th", "tr")
    if on_new_page:
        return "\n\n" if last.text.endswith(_ENDS) else "\n"
    if kind in rows and last.kind in rows:
        return "\n"
    return "\n\n" if {kind, last.kind} & {"h2", *rows} else "\n"


def _without_margins(
    number: int, lines_of: Callable[[int], list[str]]
) -> tuple[list[str], set[str]]:
    """Returns the lines of a page without headers, footers and page numbers, and those squeezed.

    They stand at the edges of one of the next two pages, too, and their numbers are the same there
    or grow as the pages' do. What a page has at its top first stays: it may be the document's title
    or the names of a table's columns.
    """
    lines = lines_of(number)
    left = set()
    last = [row for row, line in enumerate(lines) if line][-_EDGE:]
    for row in _edge_rows(lines):
        name, own = _numbered(lines[row])
        first = row not in last and any(map(str.isalpha, name))
        after = range(number + 1, number if first else number + _NEAR_PAGES + 1)
        for other in (*range(number - _NEAR_PAGES, number), *after):
            near = lines_of(other)
            seen = dict(_numbered(near[row]) for row in _edge_rows(near)).get(name)
            grow = (0, other - number)
            if seen is not None and all(b - a in grow for a, b in zip(own, seen, strict=True)):
                left.add(row)
    kept = [line for row, line in enumerate(lines) if row not in left]
    if not any(kept):  # pages that have nothing else are alike
        return lines, set()
    return kept, {_squeezed(lines[row]) for row in left}


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _edge_rows(lines: list[str]) -> set[int]:
    rows = [row for row, line in enumerate(lines) if line]
    return {*rows[:_EDGE], *rows[-_EDGE:]}


def _numbered(line: str) -> tuple[str, list[int]]:
    """A line without its numbers, and its numbers."""
    return _DIGITS.sub("#", line), [int(digits[:18]) for digits in _DIGITS.findall(line)]


def _shown(text: str) -> str:
    return clean(text.translate(_LIGATURES))


def _layout(page: Any) -> str:
    """A page's lines with its gaps as spaces; empty where pypdf cannot lay it out."""
    try:
        options = {"extraction_mode": "layout", "layout_mode_space_vertically": False}
        return _shown(page.extract_text(**options))
    except (MemoryError, RecursionError, OSError):
        raise
    except Exception:  # the text alone is there already
        return ""


def _pages(stream: Any) -> Any:
    from pypdf import PasswordType, PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = PdfReader(stream)
    # Many PDFs have an empty password for opening. Their encryption only forbids changes.
    if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
        raise UnreadableError("encrypted: save it without its password")
    return reader.pages


def paragraphs(lines: list[str], tables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Joins the lines of a page into blocks, and hyphenated words into words."""
    lengths = sorted(len(line) for line in lines if line)
    if not lengths:
        return []
    full = _FULL * lengths[int(0.9 * (len(lengths) - 1))]
    headings = _headings(lines, full)
    blocks: list[tuple[str, str]] = []
    for row, (before, line) in enumerate(zip(["", *lines], lines, strict=False)):
        continues = bool(
            line and before and len(before) >= full and len(lines) > 2 and not _NEW.match(line)
        )
        continues &= not {row, row - 1} & headings and not {before, line} & tables.keys()
        kind, joined = blocks[-1] if blocks else ("", "")
        if continues and re.search(r"\w-$", before[-2:]) and line[:1].islower():
            blocks[-1] = kind, joined[:-1] + line
        elif continues and (line[:1].islower() or not before.endswith((":", "…"))):
            blocks[-1] = kind, f"{joined} {line}"
        elif line:
            kind = "h2" if row in headings else "li" if _NEW.match(line) else "p"
            blocks.append((tables.get(line, kind), line))
    return blocks


def _headings(lines: list[str], full: float) -> set[int]:
    """The rows of short lines that stand alone, or two together, above a paragraph."""
    headings: set[int] = set()
    for row in range(1, len(lines)):
        if len(lines[row]) < full or not lines[row][0].isupper():
            continue
        first = row
        while first and row - first <= _MOST_HEADINGS and _may_head(lines[first - 1], full):
            first -= 1
        begins = not first or not lines[first - 1] or lines[first - 1].endswith(_ENDS)
        digits = [line[0].isdigit() for line in lines[first:row]]
        if begins and row - first <= _MOST_HEADINGS and sum(digits) <= 1:
            headings |= set(range(first, row))
    return headings


def _may_head(line: str, full: float) -> bool:
    return len(line) < full and bool(_HEADING.match(line)) and not line.endswith(_NO_HEADING)


def _with_tables(lines: list[str], layout: list[str]) -> tuple[list[str], dict[str, str]]:
    """Writes a page's tables as lines of "cell | cell", as far as its lines have the same order.

    Returns the kinds of these lines, too.
    """
    kinds: dict[str, str] = {}
    for rows in _tables(layout):
        squeezed = [_squeezed(line) for line in lines]
        ends = list(itertools.accumulate(map(len, squeezed), initial=0))
        letters = "".join(_squeezed(cell.group()) for row in rows for cell in row)
        first = "".join(squeezed).find(letters)
        if first in ends and first + len(letters) in ends:
            table = [" | ".join(cell.group() for cell in row) for row in rows]
            lines = [
                *lines[: ends.index(first)],
                *table,
                *lines[ends.index(first + len(letters)) :],
            ]
            kinds |= dict.fromkeys(table, "tr") | {table[0]: "th"}
    return lines, kinds


def _tables(layout: list[str]) -> Iterator[list[_Row]]:
    """Finds runs of lines whose cells stand below each other, unless a list's mark or number."""
    rows: list[_Row] = []
    for line in [*filter(str.strip, layout), ""]:
        row = list(_CELL.finditer(line))
        if rows and not _is_below(rows[-1], row):
            if len(rows) >= _ROWS and any(map(str.isalpha, rows[0][0].group())):
                yield rows
            rows = []
        if len(row) > 1:
            rows.append(row)


def _is_below(above: _Row, row: _Row) -> bool:
    """Whether two rows have as many cells, each aligned to the left, the right or the middle."""
    if len(above) != len(row):
        return False
    moved = [
        (below.start() - cell.start(), below.end() - cell.end())
        for cell, below in zip(above, row, strict=True)
    ]
    return all(min(abs(a), abs(b), abs(a + b) / 2) <= _ALIGNED for a, b in moved)
