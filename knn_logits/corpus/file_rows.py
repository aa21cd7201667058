"""Reads the rows of a file with its parser, in this process or in the sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from knn_logits.corpus.documents import Block
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
        if not rows:
            raise UnreadableError("empty")
    except (OSError, UnreadableError) as error:
        reason = str(error) if isinstance(error, UnreadableError) else first_line(error)
        before = f"; the {rows} rows before that were read" if rows else ""
        reading.skip(file.shown, reason + before)
    except CorpusError as error:
        raise CorpusError(f"{file.shown}{error}") from None


def _gathered(
    parts: Iterable[Part], format_: Format, file: SourceFile, reading: Reading
) -> Iterator[Row]:
    """Makes rows of the parts that a parser gives."""
    document, most = _Gathering(file), most_text(file.size)
    unit = "line" if format_.parser.endswith("read_lines") else "row"
    try:
        for part in parts:
            most -= _COST_OF_PART
            rows: Iterable[Row] = ()
            if isinstance(part, Left):
                report = reading.skip if part.damaged else reading.note
                report(f"{file.shown}, {part.where}" if part.where else file.shown, part.reason)
            elif isinstance(part, Begin):
                document.title = part.title
            elif isinstance(part, Fields):
                file.consumed = max(file.consumed, int(file.size * part.done))
                most -= sum(len(str(value)) for value in part.fields.values())
                rows = [file.row(part.fields, part.number, unit)]
            elif len(reading.keys) > 1:
                raise UnreadableError(f"plain text without {' and '.join(reading.keys)}")
            else:
                most -= len(part.text)
                rows = document.add(part)
            if most < 0:  # such as a table whose rows repeat one long text
                raise too_much()
            yield from rows
    except UnreadableError as error:
        if not document.has_text:
            raise
        reading.skip(file.shown, f"{error}; the text before that was read")
    if document.has_text:
        yield document.taken()


class _Gathering:
    """Gathers the texts of blocks into rows. Each but the first continues the document."""

    def __init__(self, file: SourceFile) -> None:
        self.title: str | None = None
        self._file, self._part = file, False
        self._texts: list[str] = []
        self._size = 0
        self._blocks: list[Block] = []
        self._place = "", ""

    @property
    def has_text(self) -> bool:
        return any(map(str.strip, self._texts))

    def add(self, part: Text) -> Iterator[Row]:
        """Takes a block, and yields the row that is full before it."""
        if not part.text:
            return
        large = self._size + len(part.text) > LARGEST_ROW or len(self._blocks) >= MAX_BLOCKS
        if large and self._texts:
            yield self.taken()
        place = (part.place, part.fragment) if part.place else self._place
        named = place[0] and (place != self._place or not self._blocks)
        if part.kind or named:
            self._blocks.append(Block(self._size, part.kind, *(place if named else ())))
        self._place = place
        self._texts.append(part.text)
        self._size += len(part.text)

    def taken(self) -> Row:
        fields: dict[str, object] = {
            "uri": self._file.name,
            "title": self.title,
            "text": "".join(self._texts),
        }
        row = replace(self._file.row(fields), blocks=self._blocks, part=self._part)
        self._texts, self._size, self._blocks, self._part = [], 0, [], True
        return row
