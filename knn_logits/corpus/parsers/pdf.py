"""Reads PDF with pypdf: the text of each page, with its lines joined into paragraphs again."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from typing import Any

from knn_logits.corpus.documents import HEADING_START, TEXT_LINE
from knn_logits.corpus.parsers import Left, Part, Text, clean
from knn_logits.corpus.rows import UnreadableError, first_line

# A line that ends before this share of the page's width ends its paragraph.
_FULL = 0.75
_NEW = re.compile(r"\s*(?:[-•●▪◦*–—]\s|\(?\d+[.)]\s|[A-Z][.)]\s|\(?[a-z]\)\s)")
# A page is printed with ligatures, and no question has one.
_LIGATURES = {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFB00, 0xFB07)}
# More than two short lines are a list, verses or an address.
_NO_HEADING = (".", ",", ";", ":", "!", "?", "-")
_MOST_HEADINGS = 2
# The number of lines at each edge that may be headers or footers, and the pages until they return.
_EDGE, _NEAR_PAGES = 2, 2
_CELLS = re.compile(r"\s{2,}")
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
        text = text.replace("\t", " ")
        with suppress(Exception):  # pypdf may fail here only, and the text is there without it
            text = _with_tables(text, pages[number - 1].extract_text(extraction_mode="layout"))
        return [line.strip() for line in clean(text.translate(_LIGATURES)).split("\n")]

    last: Text | None = None  # waits for what follows it
    for number in range(1, len(pages) + 1):
        blocks = paragraphs(_without_margins(number, lines_of))
        empty += not blocks
        for row, (kind, words) in enumerate(blocks):
            if last is not None:
                gap = _gap(last, kind, words, on_new_page=row == 0)
                yield last._replace(text=last.text + gap)
                kind = "" if gap == " " else kind
            last = Text(words, kind, f"page {number}", f"page={number}")
    if last is not None:
        yield last._replace(text=f"{last.text}\n\n")
    yield from damaged
    if empty == len(pages) and not damaged:
        raise UnreadableError(
            f"its pages contain no text ({empty}), as in a scan: run OCR first, for example with "
            "ocrmypdf"
        )


def _gap(last: Text, kind: str, words: str, *, on_new_page: bool) -> str:
    """The white space between two blocks: one space if a page begins within a sentence."""
    if not on_new_page:
        return "\n\n" if "h2" in (kind, last.kind) else "\n"
    if last.text.endswith(_ENDS):
        return "\n\n"
    goes_on = words[:1].islower() or len(last.text) >= TEXT_LINE
    return " " if goes_on and kind == "p" and last.kind in ("p", "") else "\n"


def _without_margins(number: int, lines_of: Callable[[int], list[str]]) -> list[str]:
    """Returns the lines of a page without headers, footers and page numbers.

    They stand at the edges of a near page, too, with the same numbers, or as many more as pages lie
    between. What a page has at its top first stays: it may be a title or the names of columns.
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
    return kept if any(kept) else lines  # pages that have nothing else are alike


def _with_tables(text: str, layout: str) -> str:
    """The text of a page with each row of a table in a line, its cells between tabs.

    The layout alone does not tell a table from columns of text. So the text must have the cells row
    by row, and the first row must name a column of numbers.
    """
    cells = [_CELLS.split(line.strip()) for line in layout.split("\n") if line.strip()]
    for width, group in groupby(cells, len):
        rows = list(group)
        # Two lines of justified text may have gaps alike.
        if width < 2 or len(rows) < 3 or _DIGITS.search("".join(rows[0])):
            continue
        numbers = any(all(map(_DIGITS.search, column)) for column in zip(*rows[1:], strict=True))
        words = r"\s+".join(map(re.escape, " ".join(map(" ".join, rows)).split()))
        found = re.search(rf"^ *{words} *$", text, re.MULTILINE)
        if numbers and found:
            text = text.replace(found[0], "\n".join(map("\t".join, rows)))
    return text


def _edge_rows(lines: list[str]) -> set[int]:
    rows = [row for row, line in enumerate(lines) if line]
    return {*rows[:_EDGE], *rows[-_EDGE:]}


def _numbered(line: str) -> tuple[str, list[int]]:
    return _DIGITS.sub("#", line), [int(digits[:18]) for digits in _DIGITS.findall(line)]


def _pages(stream: Any) -> Any:
    from pypdf import PasswordType, PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = PdfReader(stream)
    # Many PDFs have an empty password for opening. Their encryption only forbids changes.
    if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
        raise UnreadableError("encrypted: save it without its password")
    return reader.pages


def paragraphs(lines: list[str]) -> list[tuple[str, str]]:
    """Joins the lines of a page into blocks, and hyphenated words into words."""
    lengths = sorted(len(line) for line in lines if line)
    if not lengths:
        return []
    full = _FULL * lengths[int(0.9 * (len(lengths) - 1))]
    headings = _headings(["" if "\t" in line else line for line in lines], full)
    blocks: list[tuple[str, str]] = []
    for row, (before, line) in enumerate(zip(["", *lines], lines, strict=False)):
        continues = bool(
            line and before and len(before) >= full and len(lines) > 2 and not _NEW.match(line)
        )
        continues &= not ({row, row - 1} & headings or "\t" in before + line)
        kind, joined = blocks[-1] if blocks else ("", "")
        if continues and re.search(r"\w-$", before[-2:]) and line[:1].islower():
            blocks[-1] = kind, joined[:-1] + line
        elif continues and (line[:1].islower() or not before.endswith((":", "…"))):
            blocks[-1] = kind, f"{joined} {line}"
        elif "\t" in line:
            blocks.append(("tr" if before.count("\t") == line.count("\t") else "th", line))
        elif line:
            kind = "h2" if row in headings else "li" if _NEW.match(line) else "p"
            blocks.append((kind, line))
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
    return len(line) < full and bool(HEADING_START.match(line)) and not line.endswith(_NO_HEADING)
