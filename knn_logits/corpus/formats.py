"""The registry of document formats: a new one is a module in `parsers` and a line here."""

from __future__ import annotations

import re
from typing import NamedTuple


class Format(NamedTuple):
    """How files are read: by `parser`, a module in `parsers` and its function.

    They run in the sandbox, but for plain text and JSON, whose time grows with their length alone.
    """

    parser: str
    suffixes: str  # in any case, without the dot
    # "text" in some encoding, "rows" with fields, or a "file" that says how it is read.
    holds: str = "file"
    begins: bytes = b""  # with which files of another or no suffix begin


PLAIN, LINES = "plain.read", "plain.read_lines"
JSON, JSON_LINES = "json", "json_lines"
FORMATS = (
    Format(PLAIN, "txt text", "text"),
    Format(LINES, "py tex xml", "text"),  # and all others
    Format(JSON_LINES, "jsonl ndjson", "rows"),
    Format(JSON, "json", "rows"),
    Format("tables.read", "parquet", "rows"),
    Format("csv_rows.read", "csv tsv", "text"),
    Format("markdown.read", "md markdown mdown mkd qmd rmd", "text"),
    Format("rst.read", "rst", "text"),
    Format("subtitles.read", "srt vtt", "text"),
    Format("pdf.read", "pdf", begins=b"%PDF-"),
    Format("markup.read", "html htm xhtml"),
    Format("docx.read", "docx docm"),
    Format("pptx.read", "pptx pptm"),
    Format("books.read", "epub"),
    Format("notebooks.read", "ipynb"),
    Format("mail.read", "eml"),
    Format("mail.read_page", "mhtml mht"),
    Format("mail.read_mailbox", "mbox"),
    Format("rtf.read", "rtf", begins=b"{\\rtf"),
)
# Of each kind of document one suffix.
DOCUMENTS = ", ".join(f".{one.suffixes.split()[0]}" for one in FORMATS if one.holds == "file")
_READERS = {f".{suffix}": one for one in FORMATS for suffix in one.suffixes.split()}
_HOLDS = {one.parser: one.holds for one in FORMATS}

# Files that are recognised but not read: their suffixes, and what to do.
_UNREAD = (
    ("doc dot odt pages wpd", "save it as .docx or .pdf"),
    ("ppt pps odp key", "save it as .pptx or .pdf"),
    ("xls xlsx xlsm ods numbers", "save its sheets as .csv"),
    ("mobi azw azw3", "convert it to .epub"),
    ("msg pst", "export it as .eml or .mbox"),
    ("zip tar tgz 7z rar zst bz2 xz lz4 jar", "unpack it first"),
    ("sqlite db mdb", "export its texts as .jsonl"),
)
_ADVICE = {f".{suffix}": advice for suffixes, advice in _UNREAD for suffix in suffixes.split()}
_FILE = re.compile(r"(?!\w+://)\S*\w\.\w+")


def reader_of(name: str, head: bytes = b"") -> str:
    """Returns the parser of a file by its name, without `.gz`, and its first bytes."""
    suffix = _suffix(name)
    parser = _READERS[suffix].parser if suffix in _READERS else LINES if suffix else PLAIN
    if parser not in (LINES, PLAIN):
        return parser
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:14].lower()
    if not suffix and start.startswith((b"<!doctype html", b"<html")):
        return "markup.read"
    known = (one.parser for one in FORMATS if one.begins and head.startswith(one.begins))
    return next(known, parser)


def refusal(name: str, head: bytes) -> str | None:
    """Says why a file is not read, and what to do; None for a file that may be text."""
    packed = head.startswith(b"PK\x03\x04")
    if not packed and b"\0" not in head[:4096]:
        return None
    advice = _ADVICE.get(_suffix(name), "unpack it first" if packed else "")
    return f"binary: {advice}" if advice else None  # it may be UTF-16


def holds_rows(parser: str) -> bool:
    """Whether a parser gives rows with fields, and not the text of a document."""
    return _HOLDS[parser] == "rows"


def holds_text(parser: str) -> bool:
    """Whether a parser reads text, whose encoding has to be known."""
    return _HOLDS[parser] == "text"


def looks_like_a_file(name: str) -> bool:
    """Whether a name ends as files with text do, and hardly as one on the Hub does.

    It has no blank, and is no address: "report.txt" and "./notes.md", not "U.S.A.".
    """
    suffixes = (*_READERS, ".gz", ".xz", ".zip")
    return _FILE.fullmatch(name) is not None and name.lower().endswith(suffixes)


def _suffix(name: str) -> str:
    stem, dot, last = name.lower().removesuffix(".gz").rpartition(".")
    return f".{last}" if dot and stem else ""
