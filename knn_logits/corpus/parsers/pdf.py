"""Reads PDF with pypdf: the text of each page, with its lines joined into paragraphs again."""

from __future__ import annotations

import itertools
import logging
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from knn_logits.corpus.parsers import Block, Left, Part, clean
from knn_logits.corpus.rows import Schema, UnreadableError, first_line

# A line that ends before this share of the page's width ends its paragraph.
_FULL = 0.75
_NEW = re.compile(r"\s*(?:[-•●▪◦*–—]\s|\(?\d+[.)]\s|[A-Z][.)]\s|\(?[a-z]\)\s)")
# A page is printed with ligatures, and no question has one.
_LIGATURES = {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFB00, 0xFB07)}
_ENDS = (".", "!", "?", ":", ";", "”", '"', ")")


def read(path: Path, schema: Schema) -> Iterator[Part]:
    """Reads a PDF, one block for each page."""
    del schema  # a PDF has its own encoding
    pages = _pages(path)
    empty, damaged = 0, []
    for number in range(1, len(pages) + 1):
        try:
            text = pages[number - 1].extract_text().translate(_LIGATURES)
            text = paragraphs(clean(text)).strip()
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
    joined = [lines[0]]
    for before, line in itertools.pairwise(lines):
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
