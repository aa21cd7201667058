"""The registry of formats by suffix and first bytes, and what their parsers give.

A reader with a dot is a module here and its function, which runs in the sandbox only. `file_rows`
reads the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from knn_logits.corpus.rows import Schema

_READERS = {
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".json": "json",
    ".parquet": "tables.read",
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".md", ".markdown", ".mdown", ".mkd", ".qmd", ".rmd"), "markdown"),
    ".rst": "rst",
    ".pdf": "pdf.read",
    **dict.fromkeys((".html", ".htm", ".xhtml"), "markup.read"),
    **dict.fromkeys((".docx", ".docm"), "office.read_docx"),
    **dict.fromkeys((".pptx", ".pptm"), "office.read_pptx"),
    ".epub": "books.read",
    ".ipynb": "notebooks.read",
    ".eml": "mail.read",
    ".mbox": "mail.read_mailbox",
    ".rtf": "office.read_rtf",
}
_MAGIC = ((b"%PDF-", "pdf.read"), (b"{\\rtf", "office.read_rtf"))
_ROWS = ("json_lines", "json", "tables.read")
_PLAIN_SUFFIXES = (".gz", ".txt", ".xz", ".zip")

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
_CONTROLS = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def reader_of(name: str, head: bytes = b"") -> str:
    """Returns the reader of a file by its name, without `.gz`, and its first bytes; or `plain`."""
    suffix = _suffix(name)
    if suffix in _READERS:
        return _READERS[suffix]
    reader = next((reader for begin, reader in _MAGIC if head.startswith(begin)), "plain")
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:14].lower()
    if not suffix and start.startswith((b"<!doctype html", b"<html")):
        return "markup.read"
    return reader


def refusal(name: str, head: bytes) -> str | None:
    """Says why a file is not read, and what to do; None for a file that may be text."""
    reason = next((reason for begin, reason in _MAGIC_REFUSED if head.startswith(begin)), None)
    if reason is None and b"\0" not in head[:4096]:
        return None
    return _REFUSED.get(_suffix(name), reason)


def holds_rows(reader: str) -> bool:
    """Whether a reader gives rows with fields, and not the text of a document."""
    return reader in _ROWS


def looks_like_a_file(name: str) -> bool:
    """Whether a name ends as files with text do, and hardly as one on the Hub does."""
    return name.lower().endswith((*_READERS, *_PLAIN_SUFFIXES))


def _suffix(name: str) -> str:
    stem, dot, last = name.lower().removesuffix(".gz").rpartition(".")
    return f".{last}" if dot and stem else ""


@dataclass(frozen=True)
class Begin:
    """The start of a document. A file with only one, which has no title, may leave it out."""

    title: str | None = None
    number: int = 0  # from 1 in a file of several documents


@dataclass(frozen=True)
class Block:
    """The next text of a document, with the white space that separates it from the next block."""

    text: str
    place: str = ""  # for a reader, such as `page 12`
    fragment: str = ""  # the part after `#` that makes the file's uri lead to the place
    done: float = 0.0  # the share of the file that has been read, in [0, 1]


@dataclass(frozen=True)
class Fields:
    """A row of a table, with its number from 1 and the share of the file read so far."""

    fields: dict[str, object]
    number: int
    done: float


@dataclass(frozen=True)
class Left:
    """A part of the file, such as `page 3`, that is left out; damaged, or not of a kind read."""

    where: str
    reason: str
    damaged: bool = True


Part: TypeAlias = Begin | Block | Fields | Left
Parser: TypeAlias = Callable[[Path, Schema], Iterator[Part]]


def clean(text: str) -> str:
    """Removes control characters and halves of characters."""
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " "))
