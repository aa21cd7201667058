"""The registry of document formats, and the parts that parsers yield.

Each module here reads formats from an open file. A new format is such a function and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from knn_logits.corpus.documents import visible

_CONTROLS = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Begin:
    """The title of the document. It may be left out, and comes before any text."""

    title: str | None = None


class Text(NamedTuple):
    """The text of a document's next block, with the white space that follows it."""

    text: str
    kind: str = "p"  # see `Block`
    place: str = ""  # for a reader, such as `page 12`; empty if that of the block before
    fragment: str = ""  # the part after `#` that makes the file's uri lead to the place


@dataclass(frozen=True)
class Fields:
    """A row: its number from 1, or 0 for the only one, and the share of the file read so far."""

    fields: dict[str, object]
    number: int
    done: float


@dataclass(frozen=True)
class Left:
    """A part of the file that is left out; damaged, or not of a kind read."""

    where: str  # such as `page 3`; empty for a note on the file
    reason: str
    damaged: bool = True


Part: TypeAlias = Begin | Text | Fields | Left
# A parser takes an open file, for rows also their keys, or the lines of a text.
Parser: TypeAlias = Callable[..., Iterator[Part]]


def clean(text: str) -> str:
    """Removes control characters, halves of characters, and those that nobody sees."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
    return visible(_CONTROLS.sub("", text))


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
PARSERS = {one.parser: one for one in FORMATS}

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
    found = _READERS.get(suffix, PARSERS[LINES if suffix else PROSE])
    is_pdf = found.parser in (LINES, PROSE) and head.startswith(b"%PDF-")
    return PARSERS["pdf.read"] if is_pdf else found


def advice_for(name: str) -> str | None:
    """Says what to do with a file of a kind that is not read; None for any other."""
    return _ADVICE.get(_suffix(name))


def looks_like_a_file(name: str) -> bool:
    """Whether a name is that of a file with text: "report.txt" and "./notes.md", not "U.S.A."."""
    suffixes = (*_READERS, ".gz", ".xz", ".zip")
    return _FILE.fullmatch(name) is not None and name.lower().endswith(suffixes)


def _suffix(name: str) -> str:
    stem, dot, last = name.lower().removesuffix(".gz").rpartition(".")
    return f".{last}" if dot and stem else ""
