"""Reads PDF with pypdf: the text of each page, with its lines joined into paragraphs again."""

from __future__ import annotations

import itertools
import logging
import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

from knn_logits.corpus.parsers import Left, Part, Text, clean
from knn_logits.corpus.rows import Schema, UnreadableError, first_line

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


def read(stream: Any, schema: Schema) -> Iterator[Part]:
    """Reads a PDF page by page. A paragraph may go on on the next page."""
    del schema  # a PDF has its own encoding
    pages = _pages(stream)
    empty = 0
    damaged: list[Left] = []
    last: Text | None = None  # waits for what follows it
    for number, lines, page, left in _without_margins(_texts(pages, damaged)):
        layout = [line for line in _layout(page).split("\n") if _squeezed(line) not in left]
        blocks = with_tables(paragraphs("\n".join(lines)), "\n".join(layout))
        empty += not blocks
        for row, (kind, words) in enumerate(blocks):
            goes_on = row == 0 and kind == "p" and last is not None and _goes_on(last, words)
            if last is not None:
                gap = " " if goes_on else _gap(last, kind, row == 0)
                yield last._replace(text=last.text + gap)
            kind = "" if goes_on else kind
            last = Text(words, kind, f"page {number}", f"page={number}", number / len(pages))
    if last is not None:
        yield last._replace(text=f"{last.text}\n\n")
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


def _texts(pages: Any, damaged: list[Left]) -> Iterator[tuple[int, str, Any]]:
    for number in range(1, len(pages) + 1):
        try:
            page = pages[number - 1]
            yield number, _shown(page.extract_text()), page
        except (MemoryError, RecursionError, OSError):
            raise
        except Exception as error:  # a damaged page may make pypdf raise any exception
            damaged.append(Left(f"page {number}", f"damaged: {first_line(error)[:120]}"))


def _without_margins(
    pages: Iterator[tuple[int, str, Any]],
) -> Iterator[tuple[int, list[str], Any, set[str]]]:
    """Yields the lines of pages without headers, footers and page numbers, and those squeezed.

    They stand at the edges of one of the next two pages, too, and their numbers are the same there
    or grow as the pages' do. What a page has at its top first stays: it may be the document's title
    or the names of a table's columns.
    """
    near: deque[tuple[int, list[str], Any]] = deque()
    edges: dict[int, dict[str, list[int]]] = {}
    for number, text, page in itertools.chain(pages, [(0, "", None)]):
        if page is not None:
            lines = [line.strip() for line in text.split("\n")]
            near.append((number, lines, page))
            edges[number] = dict(map(_numbered, (lines[row] for row in _edge_rows(lines))))
        while len(near) > (_NEAR_PAGES if page is not None else 0):
            yield _without_margin(*near.popleft(), edges)


def _without_margin(
    number: int, lines: list[str], page: Any, edges: dict[int, dict[str, list[int]]]
) -> tuple[int, list[str], Any, set[str]]:
    left = set()
    last = [row for row, line in enumerate(lines) if line][-_EDGE:]
    for row in _edge_rows(lines):
        name, own = _numbered(lines[row])
        first = row not in last and any(map(str.isalpha, name))
        after = range(number + 1, number if first else number + _NEAR_PAGES + 1)
        for other in (*range(number - _NEAR_PAGES, number), *after):
            seen = edges.get(other, {}).get(name)
            grow = (0, other - number)
            if seen is not None and all(b - a in grow for a, b in zip(own, seen, strict=True)):
                left.add(row)
    kept = [line for row, line in enumerate(lines) if row not in left]
    if not any(kept):  # pages that have nothing else are alike
        return number, lines, page, set()
    return number, kept, page, {_squeezed(lines[row]) for row in left}


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
    from pypdf.errors import DependencyError, PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(stream)
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


def paragraphs(text: str) -> list[tuple[str, str]]:
    """Joins the lines of a page's layout into blocks, and hyphenated words into words."""
    lines = [line.strip() for line in text.split("\n")]
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
        continues &= not {row, row - 1} & headings
        kind, joined = blocks[-1] if blocks else ("", "")
        if continues and re.search(r"\w-$", before[-2:]) and line[:1].islower():
            blocks[-1] = kind, joined[:-1] + line
        elif continues and (line[:1].islower() or not before.endswith((":", "…"))):
            blocks[-1] = kind, f"{joined} {line}"
        elif line:
            blocks.append(("h2" if row in headings else "li" if _NEW.match(line) else "p", line))
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


def with_tables(blocks: list[tuple[str, str]], layout: str) -> list[tuple[str, str]]:
    """Writes a page's tables as rows of "cell | cell", as far as its text has the same order."""
    for rows in _tables(layout):
        letters = "".join(_squeezed(cell.group()) for row in rows for cell in row)
        squeezed = "".join(_squeezed(text) for _, text in blocks)
        first = squeezed.find(letters)
        if first < 0:
            continue
        above, rest = _parted(blocks, first)
        _, below = _parted(rest, len(letters))
        table = [" | ".join(cell.group() for cell in row) for row in rows]
        kinds = ["th"] + ["tr"] * len(table)
        blocks = [*above, *zip(kinds, table, strict=False), *below]
    return blocks


def _parted(
    blocks: list[tuple[str, str]], letters: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Cuts blocks after a number of letters."""
    for row, (kind, text) in enumerate(blocks):
        places = [place for place, letter in enumerate(text) if not letter.isspace()]
        if letters < len(places):
            begin, end = text[: places[letters]].rstrip(), text[places[letters] :]
            return [*blocks[:row], *([(kind, begin)] if begin else [])], [
                (kind, end),
                *blocks[row + 1 :],
            ]
        letters -= len(places)
    return blocks, []


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
