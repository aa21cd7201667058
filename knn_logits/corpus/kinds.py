"""Recognises the kind of a document by the file's name and its first bytes.

This module knows which parser reads a kind, and what to advise if none does. It parses nothing.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

# The kinds that a module of `parsers` reads, in a process of its own.
Parsed: TypeAlias = Literal[
    "pdf", "html", "docx", "pptx", "epub", "notebook", "mail", "mailbox", "rtf"
]

_PARSED: dict[str, Parsed] = {
    ".pdf": "pdf",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".docx": "docx",
    ".docm": "docx",
    ".pptx": "pptx",
    ".pptm": "pptx",
    ".epub": "epub",
    ".ipynb": "notebook",
    ".eml": "mail",
    ".mbox": "mailbox",
    ".rtf": "rtf",
}
_HEADINGS = (".md", ".markdown", ".mdown", ".mkd", ".qmd", ".rmd")
# Rows, plain text, and packed files.
_OTHERS = (".csv", ".gz", ".json", ".jsonl", ".ndjson", ".parquet", ".tsv", ".txt", ".xz", ".zip")
_AS_DOCX = "save it as .docx or .pdf"
_AS_PPTX = "save it as .pptx or .pdf"
_NO_TEXT = "it holds no text"
_UNPACK = "unpack it first"
# Files that are recognised but not read: their suffixes, what they are, and what to do.
_KNOWN = (
    (("doc", "dot"), "an older Word document", _AS_DOCX),
    (("odt", "pages", "wpd"), "a text document", _AS_DOCX),
    (("ppt", "pps"), "an older presentation", _AS_PPTX),
    (("odp", "key"), "a presentation", _AS_PPTX),
    (("xls", "xlsx", "xlsm", "ods", "numbers"), "a spreadsheet", "save its sheets as .csv"),
    (("mobi", "azw", "azw3"), "an e-book", "convert it to .epub"),
    (("djvu",), "a scanned book", "convert it to a .pdf with text"),
    (("msg",), "a message of Outlook", "save it as .eml"),
    (("pst",), "a mailbox of Outlook", "export it as .mbox"),
    (("zip", "tar", "tgz", "7z", "rar", "zst", "bz2", "xz", "lz4", "jar"), "packed", _UNPACK),
    (("png", "jpg", "jpeg", "gif", "webp", "bmp", "tif", "tiff", "ico"), "an image", _NO_TEXT),
    (("mp3", "wav", "flac", "ogg", "m4a"), "sound", _NO_TEXT),
    (("mp4", "mkv", "avi", "mov", "webm"), "a film", _NO_TEXT),
    (("exe", "dll", "so", "pyc", "class", "o", "a", "wasm"), "a program", _NO_TEXT),
    (("ttf", "otf", "woff", "woff2"), "a font", _NO_TEXT),
    (("sqlite", "db", "mdb"), "a database", "export its texts as .jsonl"),
    (("npy", "npz", "safetensors", "pt"), "numbers", _NO_TEXT),
)
_REFUSED = {f".{one}": (what, advice) for several, what, advice in _KNOWN for one in several}
_MAGIC: tuple[tuple[bytes, Parsed], ...] = ((b"%PDF-", "pdf"), (b"{\\rtf", "rtf"))
_MAGIC_REFUSED: tuple[tuple[bytes, tuple[str, str]], ...] = (
    (b"PK\x03\x04", ("packed", _UNPACK)),
    (b"\xd0\xcf\x11\xe0", ("a document of an older Office", "save it in its newer form")),
    (b"\x89PNG", ("an image", _NO_TEXT)),
    (b"\xff\xd8\xff", ("an image", _NO_TEXT)),
    (b"GIF8", ("an image", _NO_TEXT)),
    (b"\x7fELF", ("a program", _NO_TEXT)),
    (b"SQLite format 3\0", ("a database", "export its texts as .jsonl")),
    (b"BZh", ("packed", _UNPACK)),
    (b"\xfd7zXZ", ("packed", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", ("packed", _UNPACK)),
    (b"7z\xbc\xaf", ("packed", _UNPACK)),
)


def parsed_kind(stem: str, head: bytes) -> Parsed | None:
    """Returns the kind of a file that a parser reads; None for plain text and for other files.

    Args:
        stem: The file's name in small letters, without `.gz`.
        head: The file's first bytes.
    """
    known = _PARSED.get(_suffix(stem))
    if known is not None:
        return known
    magic = next((kind for begin, kind in _MAGIC if head.startswith(begin)), None)
    if magic is not None or _suffix(stem):
        return magic
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:14].lower()
    return "html" if start.startswith((b"<!doctype html", b"<html")) else None


def refusal(stem: str, head: bytes) -> str | None:
    """Says why a file is not read, and what to do; None for a file that may be text.

    Args:
        stem: The file's name in small letters, without `.gz`.
        head: The file's first bytes.
    """
    found = next((said for begin, said in _MAGIC_REFUSED if head.startswith(begin)), None)
    if found is None and b"\0" in head[:4096]:
        found = _REFUSED.get(_suffix(stem))
    if found is None:
        return None
    what, advice = _REFUSED.get(_suffix(stem), found)
    return f"{what}: {advice}"


def has_headings(stem: str) -> bool:
    """Whether a text file is Markdown, whose headings are places."""
    return stem.endswith(_HEADINGS)


def _suffix(stem: str) -> str:
    name, dot, last = stem.rpartition(".")
    return f".{last}" if dot and name else ""


def looks_like_a_file(name: str) -> bool:
    """Whether a name ends as files with text do, and hardly as one on the Hub does."""
    return name.lower().endswith((*_PARSED, *_HEADINGS, *_OTHERS))
