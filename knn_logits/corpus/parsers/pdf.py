"""Reads PDF with pypdf: the text of each page, with its lines joined into paragraphs again."""

from __future__ import annotations

import itertools
import logging
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from knn_logits.corpus.parsers import Block, Left, Part, clean
from knn_logits.corpus.rows import Schema, UnreadableError, first_line

# A line that ends before this share of the page's width ends its paragraph.
_FULL = 0.75
_NEW = re.compile(r"\s*(?:[-•●▪◦*–—]\s|\(?\d+[.)]\s|[A-Z][.)]\s|\(?[a-z]\)\s)")
# A page is printed with ligatures, and no question has one.
_LIGATURES = {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFB00, 0xFB07)}
# A cell of a table stands this far from the next one. Its rows are at least so many, and aligned up
# to so many characters.
_CELL = re.compile(r"\S+(?: \S+)*")
_ROWS, _ALIGNED = 3, 2
_Row: TypeAlias = list[re.Match[str]]
# A heading may have a number. More than two short lines are a list, verses or an address.
_HEADING = re.compile(r"(?:\d{1,2}(?:\.\d{1,2})*[.)]?\s+)?[^\W\d_a-z]")
_NO_HEADING = (".", ",", ";", ":", "!", "?", "-")
_MOST_HEADINGS = 2
_ENDS = (".", "!", "?", ":", ";", "”", '"', ")")


def read(path: Path, schema: Schema) -> Iterator[Part]:
    """Reads a PDF, one block for each page."""
    del schema  # a PDF has its own encoding
    pages = _pages(path)
    empty, damaged = 0, []
    for number in range(1, len(pages) + 1):
        try:
            page = pages[number - 1]
            text = paragraphs(_shown(page.extract_text()))
            text = with_tables(text, _layout(page)).strip()
        except (MemoryError, RecursionError, OSError):
            raise
        except Exception as error:  # a damaged page may make pypdf raise any exception
            damaged.append(Left(f"page {number}", f"damaged: {first_line(error)[:120]}"))
            continue
        if not text:
            empty += 1
            continue
        gap = "\n\n" if text.endswith(_ENDS) else "\n"
        yield Block(text + gap, f"page {number}", f"page={number}", number / len(pages))
    if damaged and empty + len(damaged) == len(pages):
        first = damaged[0]
        raise UnreadableError(first.reason.replace("damaged:", f"damaged: {first.where}:"))
    yield from damaged
    if not len(pages):
        raise UnreadableError("it has no pages")
    if empty == len(pages):
        raise UnreadableError(
            f"its pages contain no text ({empty}), as in a scan: run OCR first, for example with "
            "ocrmypdf"
        )


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


def _pages(path: Path) -> Any:
    from pypdf import PasswordType, PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(path)
        # Many PDFs have an empty password for opening. Their encryption only forbids changes.
        if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
            raise UnreadableError("encrypted: save it without its password")
        len(reader.pages)
    except DependencyError as error:
        raise UnreadableError(
            f"encrypted, and cannot be opened ({error}): save it without its password"
        ) from None
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UnreadableError(
            f"damaged: {first_line(error)[:120]}; download it again, or print it to a PDF"
        ) from None
    return reader.pages


def paragraphs(text: str) -> str:
    """Joins the lines of a page's layout into paragraphs, and hyphenated words into words."""
    lines = [line.strip() for line in text.split("\n")]
    lengths = sorted(len(line) for line in lines if line)
    if not lengths:
        return ""
    full = _FULL * lengths[int(0.9 * (len(lengths) - 1))]
    headings = _headings(lines, full)
    joined = [lines[0]]
    for row, (before, line) in enumerate(itertools.pairwise(lines)):
        if row in headings or row + 1 in headings:
            joined.append(f"\n\n{line}")
            continue
        continues = line and len(before) >= full and not _NEW.match(line)
        if continues and re.search(r"\w-$", before[-2:]) and line[0].islower():
            joined[-1] = joined[-1][:-1]
            joined.append(line)
        elif (
            continues and len(lines) > 2 and (line[0].islower() or not before.endswith((":", "…")))
        ):
            joined.append(f" {line}")
        else:
            joined.append(f"\n{line}")
    return re.sub(r"\n{3,}", "\n\n", "".join(joined))


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


def with_tables(text: str, layout: str) -> str:
    """Writes a page's tables as rows of "cell | cell", as far as its text has the same order."""
    places = [place for place, letter in enumerate(text) if not letter.isspace()]
    squeezed = "".join(text[place] for place in places)
    parts, done, start = [], 0, 0
    for rows in _tables(layout):
        letters = "".join("".join(cell.group().split()) for row in rows for cell in row)
        first = squeezed.find(letters, start)
        if first < 0:
            continue
        start = first + len(letters)
        table = "\n".join(" | ".join(cell.group() for cell in row) for row in rows)
        parts += [text[done : places[first]].rstrip(), "\n\n", table, "\n\n"]
        done = places[start - 1] + 1
    return "".join([*parts, text[done:].lstrip() if parts else text])


def _tables(layout: str) -> Iterator[list[_Row]]:
    """Finds runs of lines whose cells stand below each other, unless a list's mark or number."""
    rows: list[_Row] = []
    for line in [*filter(str.strip, layout.split("\n")), ""]:
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
