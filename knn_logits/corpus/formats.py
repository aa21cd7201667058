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

_AS_DOCX, _AS_PPTX = "save it as .docx or .pdf", "save it as .pptx or .pdf"
_AS_ROWS, _NO_TEXT, _UNPACK = "export its texts as .jsonl", "it holds no text", "unpack it first"
# Files that are recognised but not read: their suffixes, what they are, and what to do.
_UNREAD = (
    ("doc dot", "an older Word document", _AS_DOCX),
    ("odt pages wpd", "a text document", _AS_DOCX),
    ("ppt pps", "an older presentation", _AS_PPTX),
    ("odp key", "a presentation", _AS_PPTX),
    ("xls xlsx xlsm ods numbers", "a spreadsheet", "save its sheets as .csv"),
    ("mobi azw azw3", "an e-book", "convert it to .epub"),
    ("djvu", "a scanned book", "convert it to a .pdf with text"),
    ("msg", "a message of Outlook", "save it as .eml"),
    ("pst", "a mailbox of Outlook", "export it as .mbox"),
    ("zip tar tgz 7z rar zst bz2 xz lz4 jar", "packed", _UNPACK),
    ("png jpg jpeg gif webp bmp tif tiff ico", "an image", _NO_TEXT),
    ("mp3 wav flac ogg m4a", "sound", _NO_TEXT),
    ("mp4 mkv avi mov webm", "a film", _NO_TEXT),
    ("exe dll so pyc class o a wasm", "a program", _NO_TEXT),
    ("ttf otf woff woff2", "a font", _NO_TEXT),
    ("sqlite db mdb", "a database", _AS_ROWS),
    ("npy npz safetensors pt", "numbers", _NO_TEXT),
)
_REFUSED = {
    f".{suffix}": f"{kind}: {advice}"
    for suffixes, kind, advice in _UNREAD
    for suffix in suffixes.split()
}
_MAGIC_REFUSED = (
    (b"PK\x03\x04", f"packed: {_UNPACK}"),
    (b"\xd0\xcf\x11\xe0", "a document of an older Office: save it in its newer form"),
    (b"\x89PNG", f"an image: {_NO_TEXT}"),
    (b"\xff\xd8\xff", f"an image: {_NO_TEXT}"),
    (b"GIF8", f"an image: {_NO_TEXT}"),
    (b"\x7fELF", f"a program: {_NO_TEXT}"),
    (b"SQLite format 3\0", f"a database: {_AS_ROWS}"),
    (b"BZh", f"packed: {_UNPACK}"),
    (b"\xfd7zXZ", f"packed: {_UNPACK}"),
    (b"\x28\xb5\x2f\xfd", f"packed: {_UNPACK}"),
    (b"7z\xbc\xaf", f"packed: {_UNPACK}"),
)
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
    reason = next((reason for begin, reason in _MAGIC_REFUSED if head.startswith(begin)), None)
    if reason is None and b"\0" not in head[:4096]:
        return None
    return _REFUSED.get(_suffix(name), reason)


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
