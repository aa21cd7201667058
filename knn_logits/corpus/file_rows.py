"""Reads the rows of a file with its parser, in this process or in the sandbox."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from knn_logits.corpus.blocks import Block
from knn_logits.corpus.parsers import Begin, Fields, Format, Left, Part, Text, format_of
from knn_logits.corpus.rows import Row, Skip, SourceFile, UnreadableError, first_line
from knn_logits.corpus.sandbox import Sandbox, parsed
from knn_logits.corpus.texts import most_text, opened, too_much
from knn_logits.errors import CorpusError
from knn_logits.store.blocks import MAX_BLOCKS

_HEAD = 4096
# An empty part costs time as well: as much as one of this number of characters.
_COST_OF_PART = 100
# The most characters of a row, unless a single block has more. Each part of a larger file is a row
# with the file's id, so that memory is bounded and one name removes all parts.
LARGEST_ROW = 4 << 20


@dataclass(frozen=True)
class Reading:
    """How files are read. A part that is left out, or a note on a file, has a name and a reason."""

    keys: tuple[str, ...]
    skip: Skip
    note: Skip
    sandbox: Sandbox


def read_rows(file: SourceFile, reading: Reading) -> Iterator[Row]:
    """Reads the rows of one file, one at a time."""
    rows = 0
    try:
        with opened(file.path) as stream:
            head = stream.read(_HEAD)
        if not head:
            raise UnreadableError("empty")
        format_ = format_of(file.path.name, head)
        read = reading.sandbox.parts if format_.untrusted else parsed
        for row in _gathered(read(file.path, format_.parser, reading.keys), format_, file, reading):
            rows += 1
            yield row
    except (OSError, EOFError, zlib.error) as error:
        damaged = not (isinstance(error, OSError) and error.errno)
        reason = f"damaged gzip ({first_line(error)})" if damaged else first_line(error)
        reading.skip(file.shown, reason + _before(rows))
    except UnreadableError as error:
        reading.skip(file.shown, f"{error}{_before(rows)}")
    except CorpusError as error:
        raise CorpusError(f"{file.shown}{error}") from None


def _before(rows: int) -> str:
    return f"; the {rows} rows before that were read" if rows else ""


def _gathered(
    parts: Iterable[Part], format_: Format, file: SourceFile, reading: Reading
) -> Iterator[Row]:
    """Makes rows of the parts that a parser gives."""
    document: Gathering | None = None
    has_text, most = False, most_text(file.size)
    unit = "line" if format_.parser.endswith("read_lines") else "row"
    try:
        for part in parts:
            most -= _COST_OF_PART
            if isinstance(part, Left):
                report = reading.skip if part.damaged else reading.note
                report(f"{file.shown}, {part.where}" if part.where else file.shown, part.reason)
                rows: Iterable[Row] = ()
            elif isinstance(part, Begin):
                document, rows = _beginning(file, part.title), ()
            elif isinstance(part, Fields):
                file.consumed = max(file.consumed, int(file.size * part.done))
                most -= sum(len(str(value)) for value in part.fields.values())
                rows = [file.row(part.fields, part.number, unit)]
            elif len(reading.keys) > 1:
                raise UnreadableError(f"plain text without {' and '.join(reading.keys)}")
            else:
                document = document or _beginning(file)
                has_text = has_text or bool(part.text.strip())
                most -= len(part.text)
                rows = document.add(part)
            if most < 0:  # such as a table whose rows repeat one long text
                raise too_much()
            yield from rows
    except UnreadableError as error:
        if not has_text:
            raise
        reading.skip(file.shown, f"{error}; the text before that was read")
    if document is not None:
        yield from document.rest()
    elif format_.holds != "rows":
        raise UnreadableError("empty")


def _beginning(file: SourceFile, title: str | None = None) -> Gathering:
    return Gathering(file.row({"uri": file.name, "title": title}))


class Gathering:
    """Gathers the texts of blocks into copies of a row."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._texts: list[str] = []
        self._size = 0
        self._blocks: list[Block] = []
        self._place = "", ""
        self._part = False

    def add(self, part: Text) -> Iterator[Row]:
        """Takes a block, and yields the row that is full before it."""
        if not part.text:
            return
        large = self._size + len(part.text) > LARGEST_ROW or len(self._blocks) >= MAX_BLOCKS
        if large and self._texts:
            yield self._taken()
        place = (part.place, part.fragment) if part.place else self._place
        named = place[0] and (place != self._place or not self._blocks)
        if part.kind or named:
            self._blocks.append(Block(self._size, part.kind, *(place if named else ())))
        self._place = place
        self._texts.append(part.text)
        self._size += len(part.text)

    def rest(self) -> Iterator[Row]:
        """Yields the rest of the text as the last row, if there is any."""
        if any(text.strip() for text in self._texts) or not self._part:
            yield self._taken()

    def _taken(self) -> Row:
        fields = {**self._row.fields, "text": "".join(self._texts)}
        row = replace(self._row, fields=fields, blocks=self._blocks, part=self._part)
        self._texts, self._size, self._blocks, self._part = [], 0, [], True
        return row
