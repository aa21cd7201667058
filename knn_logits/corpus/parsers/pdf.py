"""Reads PDF with pypdf: the text of each page, with its lines joined into paragraphs again."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from knn_logits.corpus.parsers.blocks import Block, Left, Part, RefusedError, clean

# A line that ends before this share of the page's width ends its paragraph.
_FULL = 0.75
_NEW = re.compile(r"\s*(?:[-•●▪◦*–—]\s|\(?\d+[.)]\s|[A-Z][.)]\s|\(?[a-z]\)\s)")
_ENDS = (".", "!", "?", ":", ";", "”", '"', ")")


def read(path: Path, encoding: str | None) -> Iterator[Part]:
    """Reads a PDF, one block for each page."""
    del encoding  # a PDF has its own encoding
    from pypdf import PasswordType, PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(path)
        # Many PDFs have an empty password for opening. Their encryption only forbids changes.
        if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
            raise RefusedError("encrypted: save it without its password")
        pages = len(reader.pages)
    except DependencyError as error:
        raise RefusedError(
            f"encrypted, and cannot be opened ({error}): save it without its password"
        ) from None
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise RefusedError(
            f"damaged: {_reason(error)}; get it again, or print it to a PDF"
        ) from None
    empty, damaged = 0, []
    for number in range(1, pages + 1):
        try:
            text = paragraphs(clean(reader.pages[number - 1].extract_text())).strip()
        except (MemoryError, RecursionError, OSError):
            raise
        except Exception as error:  # a damaged page may make pypdf raise any exception
            damaged.append(Left(f"page {number}", f"damaged: {_reason(error)}"))
            continue
        if not text:
            empty += 1
            continue
        ended = text.endswith(_ENDS)
        gap = "\n\n" if ended else "\n"
        yield Block(text + gap, f"page {number}", f"page={number}", number / pages)
    if damaged and empty + len(damaged) == pages:
        first = damaged[0]
        raise RefusedError(first.reason.replace("damaged:", f"damaged: {first.where}:"))
    yield from damaged
    if pages and empty == pages:
        raise RefusedError(
            f"no text on its pages ({pages}), as in a scan: add the text with ocrmypdf or another "
            "OCR program"
        )
    if not pages:
        raise RefusedError("it has no pages")


def paragraphs(text: str) -> str:
    """Joins the lines of a page's layout into paragraphs, and hyphenated words into words."""
    lines = [line.strip() for line in text.split("\n")]
    lengths = sorted(len(line) for line in lines if line)
    if not lengths:
        return ""
    full = _FULL * lengths[int(0.9 * (len(lengths) - 1))]
    joined = lines[0]
    for before, line in itertools.pairwise(lines):
        goes_on = line and len(before) >= full and not _NEW.match(line)
        if goes_on and re.search(r"\w-$", before) and line[0].islower():
            joined = joined[:-1] + line
        elif goes_on and (line[0].islower() or not before.endswith((":", "…"))) and len(lines) > 2:
            joined += f" {line}"
        else:
            joined += f"\n{line}"
    return re.sub(r"\n{3,}", "\n\n", joined)


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
