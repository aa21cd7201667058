"""The registry of document formats: a new one is a module in `parsers` and a line here."""

from __future__ import annotations

import re
from typing import NamedTuple


class Format(NamedTuple):
    """How files are read: by `parser`, a module in `parsers` and its function."""

    parser: str
    suffixes: str  # in lower case, without the dot
    # "text" in some encoding, "rows" with fields, or a "file" that says how it is read.
    holds: str = "file"
    # Whether it is parsed in the sandbox. The time of the others grows with their length alone.
    untrusted: bool = True


PROSE, LINES = "prose.read", "prose.read_lines"
FORMATS = (
    Format(PROSE, "txt text rst", "text", untrusted=False),
    Format(LINES, "py tex xml", "text", untrusted=False),  # and all others
    Format("rows.read_lines", "jsonl ndjson", "rows", untrusted=False),
    Format("rows.read", "json", "rows", untrusted=False),
    Format("rows.read_parquet", "parquet", "rows"),
    Format("rows.read_csv", "csv tsv", "text"),
    Format("prose.read_markdown", "md markdown mdown mkd qmd rmd", "text"),
    Format("pdf.read", "pdf"),
    Format("markup.read", "html htm xhtml"),
    Format("archives.read_docx", "docx docm"),
    Format("archives.read_epub", "epub"),
    Format("prose.read_notebook", "ipynb"),
    Format("mail.read", "eml"),
)
# Of each kind of document one suffix.
DOCUMENTS = ", ".join(f".{one.suffixes.split()[0]}" for one in FORMATS if one.holds == "file")
_READERS = {f".{suffix}": one for one in FORMATS for suffix in one.suffixes.split()}
_PARSERS = {one.parser: one for one in FORMATS}

# Files that are recognised but not read: their suffixes, and what to do.
_UNREAD = (
    ("doc rtf odt pages", "save it as .docx or .pdf"),
    ("ppt pptx odp key", "save it as .pdf"),
    ("xls xlsx ods numbers", "save its sheets as .csv"),
    ("mobi azw3", "convert it to .epub"),
    ("mht mhtml", "save the page as .html"),
    ("mbox msg pst", "export each message as .eml"),
    ("srt vtt", "save what is said as .txt"),
    ("zip tar tgz 7z rar", "unpack it first"),
)
_ADVICE = {f".{suffix}": advice for suffixes, advice in _UNREAD for suffix in suffixes.split()}
_FILE = re.compile(r"(?!\w+://)\S*\w\.\w+")


def format_of(name: str, head: bytes = b"") -> Format:
    """Returns the format of a file by its name, without `.gz`, and its first bytes."""
    suffix = _suffix(name)
    found = _READERS.get(suffix, _PARSERS[LINES if suffix else PROSE])
    is_pdf = found.parser in (LINES, PROSE) and head.startswith(b"%PDF-")
    return _PARSERS["pdf.read"] if is_pdf else found


def parser_format(parser: str) -> Format:
    """Returns the format that a parser reads."""
    return _PARSERS[parser]


def advice_for(name: str) -> str | None:
    """Says what to do with a file of a kind that is not read; None for any other."""
    return _ADVICE.get(_suffix(name))


def looks_like_a_file(name: str) -> bool:
    """Whether a name ends as files with text do, and hardly as one on the Hub does.

    It has no blank, and is no address: "report.txt" and "./notes.md", not "U.S.A.".
    """
    suffixes = (*_READERS, ".gz", ".xz", ".zip")
    return _FILE.fullmatch(name) is not None and name.lower().endswith(suffixes)


def _suffix(name: str) -> str:
    stem, dot, last = name.lower().removesuffix(".gz").rpartition(".")
    return f".{last}" if dot and stem else ""
