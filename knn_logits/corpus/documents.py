"""`Document` and its `Block`s, those of plain text, and checks of values that users pass."""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from knn_logits.errors import CorpusError
from knn_logits.store.blocks import MAX_BLOCKS

Item = TypeVar("Item")
# Soft hyphens, and spaces and joiners of no width, which no search or quotation has. The joiners of
# letters, U+200C and U+200D, have a meaning in Persian, in Hindi and in emoji.
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")
# A longer paragraph of plain text is cut between two lines, and longer white space anywhere.
_LONGEST_PARAGRAPH, _LONGEST_SPACE = 1000, 1 << 20
_LONGEST_NAME = 80
ITEM = re.compile(r"\s{0,12}(?:[-*+•▪◦●–]|\(?\d{1,3}[.)]|[a-z]\))[ \t]+\S")
_UNDERLINE = re.compile(r"[ \t]{0,3}([=\-~^\"'`#*+])\1{2,}[ \t]*\n?")
# A heading begins with a capital, perhaps behind a number.
HEADING_START = re.compile(r"(?:\d{1,2}(?:\.\d{1,2})*[.)]?\s+)?[^\W\d_a-z]")
_NO_HEADING = (".", ",", ";", ":", "!", "-", "…")
TEXT_LINE = 60


def with_line_feeds(text: str) -> str:
    r"""Returns a text as a file has it: no mark at its start, and `\n` for every line end."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def visible(text: str) -> str:
    """Returns a text without soft hyphens and characters of no width."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


@dataclass(frozen=True)
class Block:
    """A part of a document's text, which ends where the next one starts.

    Attributes:
        start: The block's first character, counted from 0 in the document's text.
        kind: The block's kind as HTML names it: `h1` to `h6`, `p`, `li`, `pre`, `tr`, or `th` for
            the row that names a table's columns. It is empty if the block continues the one before
            at another place.
        place: The name of the place for a reader, such as `page 12` or `line 307`. It is empty if
            the block is at the place of the one before.
        fragment: The part after `#` that makes the document's uri lead there; may be empty.
    """

    start: int
    kind: str = "p"
    place: str = ""
    fragment: str = ""


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    Attributes:
        text: The text, which can be encoded as UTF-8. If the document is a pair, it is the target.
            `read_corpus` returns no blank text.
        id: The document's name. `read_corpus` returns unique ids, but the parts of one very large
            file share an id. If the file gives no id, it is the file's path relative to the given
            folder. In a file of several documents, `:` and the number of the line or row (from 1)
            follow.
        title: The title, if the file gives one.
        uri: The address of the document, if the file gives one. For a text file it is the
            relative path.
        metadata: The other fields of the document's row, all of them JSON values. Parquet and `hf:`
            give dates and decimals as text, and their nulls and bytes are left out.
        source: The text that an encoder reads, if the document is a pair.
        blocks: The headings, paragraphs, list items, table rows and code of the text, in order. A
            source in a trace names the place of its block. Without blocks, a text is cut as a
            `.txt` file is. A datastore keeps blocks if its tokenizer is a fast one.

    Raises:
        CorpusError: when a field has another type, or holds half a character.
    """

    text: str
    id: str
    title: str | None = None
    uri: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    source: str | None = None
    blocks: Sequence[Block] = ()

    def __post_init__(self) -> None:
        checked_text(self.id, "a document's id")
        for name in ("text", "title", "uri", "source"):
            value = getattr(self, name)
            if value is not None or name == "text":
                checked_text(value, f"the {name} of the document {self.id[:80]!r}")
        if not isinstance(self.metadata, Mapping):
            raise CorpusError(
                f"the metadata of the document {self.id[:80]!r} must be a mapping, not a "
                f"{type(self.metadata).__name__}"
            )
        if not self.blocks and self.source is None:
            object.__setattr__(self, "blocks", text_blocks(self.text))


def checked_text(value: object, label: str) -> str:
    """Returns a value, and refuses one that is no text or holds half a character."""
    if not isinstance(value, str):
        raise CorpusError(f"{label} must be a string, not a {type(value).__name__}")
    try:
        if not value.isascii():
            value.encode("utf-8")
    except UnicodeEncodeError:
        raise CorpusError(
            f"{label} contains a lone surrogate, which is not a valid character; replace or "
            "remove it"
        ) from None
    return value


def several(values: Iterable[Item], label: str) -> Iterable[Item]:
    """Refuses a single value, such as a string, which would be read as its characters."""
    single = isinstance(values, (str, bytes, os.PathLike, Document, Mapping))
    if single or not isinstance(values, Iterable):
        raise CorpusError(
            f"{label} must be a list, not a single {type(values).__name__}; put it in a list, "
            "[...], or read files with read_corpus"
        )
    return values


def as_documents(
    documents: Iterable[Document | str], before: Collection[str] = ()
) -> Iterator[Document]:
    """Turns texts into documents, and numbers those without an id after the ids in `before`."""
    return _numbered(several(documents, "documents"), before)


def _numbered(documents: Iterable[Document | str], before: Collection[str]) -> Iterator[Document]:
    ids = dict.fromkeys(before, 1)
    for number, document in enumerate(documents, start=len(before)):
        if isinstance(document, Document):
            ids.setdefault(document.id, 1)
            yield document
        elif isinstance(document, str):
            if re.fullmatch(r"\S*[/.]\S*", document) and is_there(document):
                raise CorpusError(
                    f"{document!r} is a file or a folder, but texts are expected here: use "
                    f"read_corpus([{document!r}]), or pass Document({document!r}, id) if this is "
                    "the text"
                )
            yield Document(document, unique_id(str(number), ids))
        else:
            raise CorpusError(
                f"document number {number + 1} is a {type(document).__name__}; pass strings, or "
                "Document(text, id)"
            )


def is_there(name: str) -> bool:
    """Whether a file or a folder has this name, which may be one that no system allows."""
    return os.path.exists(name)  # noqa: PTH110 (that of Path raises errors)


def unique_id(name: str, ids: dict[str, int]) -> str:
    """Returns `name`, with a number if it was used before. `ids` counts the uses of each name."""
    unique = name
    while unique in ids:
        ids[name] += 1
        unique = f"{name}#{ids[name]}"
    ids[unique] = 1
    return unique


def quoted(name: str) -> str:
    """Makes a heading the name of a place; empty for an empty one."""
    name = " ".join(name.split())
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    return f"“{short}”" if short else ""


def text_blocks(text: str) -> tuple[Block, ...]:
    if "\n" not in text:
        return (Block(0),)
    blocks, start = [], 0
    for kind, part, _ in itertools.islice(prose(io.StringIO(text)), MAX_BLOCKS):
        if kind:
            blocks.append(Block(start, kind))
        start += len(part)
    return tuple(blocks)


def paragraphs(text: Iterable[str]) -> Iterator[tuple[list[str], int, bool]]:
    """Yields the lines of parts of paragraphs, the first's number, and whether it begins one."""
    lines: list[str] = []
    number, row, size, begins = 1, 1, 0, True
    for line in text:
        ended = bool(lines) and lines[-1].isspace()
        full = size > (_LONGEST_SPACE if line.isspace() else _LONGEST_PARAGRAPH)
        if full or (ended and not line.isspace()):
            yield lines, number, begins
            lines, number, size, begins = [], row, 0, ended
        lines.append(line)
        size += len(line)
        row += line.endswith("\n")
    if lines:
        yield lines, number, begins


def prose(text: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yields the kind, the text and the first line of each block of the lines of plain text."""
    parts = itertools.chain(paragraphs(text), [([""], 0, True)])
    for (lines, number, begins), (following, _, _) in itertools.pairwise(parts):
        level, end = _heading(lines, following) if begins else ("", 0)
        if end:
            yield level, "".join(lines[:end]), number
        kind, start = "p" if begins else "", end
        kind = "" if lines[0].isspace() else kind
        for row in range(end, len(lines)):
            if ITEM.match(lines[row]):
                if row > start:
                    yield kind, "".join(lines[start:row]), number + start
                kind, start = "li", row
        if start < len(lines):
            yield kind, "".join(lines[start:]), number + start


def _heading(lines: list[str], following: list[str]) -> tuple[str, int]:
    """Returns the level of the heading that a paragraph begins with, and its number of lines."""
    over = len(lines) > 2 and _UNDERLINE.fullmatch(lines[0]) is not None
    sign = _UNDERLINE.fullmatch(lines[over + 1]) if len(lines) > over + 1 else None
    name, below = [line.strip() for line in [*lines[over:], ""][:2]]
    if len(name) > _LONGEST_NAME:
        return "", 0
    if sign is not None and any(map(str.isalnum, name)) and len(below) >= len(name) // 2:
        level, end = "h1" if sign[1] == "=" else "h2", over + 2
        rest = "".join(lines[end:]).strip()
    else:  # a short line that is not a sentence, above a longer text
        if over or not HEADING_START.match(lines[0]) or name.endswith(_NO_HEADING):
            return "", 0
        alone = len("".join(following).strip()) > len(name) and not ITEM.match(name)
        above = len(below) >= max(TEXT_LINE, 2 * len(name)) and below[:1].isupper()
        if not (above if below else alone):
            return "", 0
        level, end, rest = "h3", 1, below
    # The blank lines after a heading belong to it.
    return level, end if rest else len(lines)
