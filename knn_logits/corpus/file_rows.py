"""Reads the rows of a file with its parser, in this process or in the sandbox."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from knn_logits.corpus.formats import Format, format_of
from knn_logits.corpus.gathering import Gathering
from knn_logits.corpus.parsers import Begin, Fields, Left, Part
from knn_logits.corpus.rows import Row, Skip, SourceFile, UnreadableError, first_line
from knn_logits.corpus.sandbox import Sandbox, parsed
from knn_logits.corpus.texts import most_text, opened, too_much
from knn_logits.errors import CorpusError

_HEAD = 4096
# An empty part costs time as well: as much as one of this number of characters.
_COST_OF_PART = 100
_BETWEEN = "::"


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
                rows = () if document is None else document.rest()
                document = _beginning(file, part)
            elif isinstance(part, Fields):
                file.consumed = max(file.consumed, int(file.size * part.done))
                most -= sum(len(str(value)) for value in part.fields.values())
                rows = [file.row(part.fields, part.number, unit)]
            elif len(reading.keys) > 1:
                raise UnreadableError(f"plain text without {' and '.join(reading.keys)}")
            else:
                document = document or _beginning(file, Begin())
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


def _beginning(file: SourceFile, begin: Begin) -> Gathering:
    title: dict[str, object] = {"title": begin.title} if begin.title else {}
    return Gathering(file.row({"uri": file.name, **title}, begin.number, "message"))


def split_parallel(name: str) -> tuple[str, str] | None:
    """Returns the two files that `SOURCE::TARGET` names; None for another name or a real path."""
    source, between, target = name.partition(_BETWEEN)
    if not between or not source or not target or Path(name).exists():
        return None
    return source, target


def read_parallel(
    source: SourceFile, target: SourceFile, keys: tuple[str, ...], skip: Skip
) -> Iterator[Row]:
    """Reads the lines of two text files, which may be gzipped, side by side as pairs."""
    with ExitStack() as stack:
        try:
            streams = [stack.enter_context(opened(file.path)) for file in (source, target)]
            for number, lines in enumerate(itertools.zip_longest(*streams), start=1):
                if None in lines:
                    short, long = (source, target) if lines[0] is None else (target, source)
                    raise CorpusError(
                        f"{short.shown} has only {number - 1} lines, fewer than {long.shown}: "
                        "parallel files need the same number of lines"
                    )
                coding = "utf-8-sig" if number == 1 else "utf-8"
                try:
                    texts = [line.decode(coding).rstrip("\r\n") for line in lines]
                except UnicodeDecodeError:
                    skip(f"{target.shown}, line {number}", "not UTF-8 text")
                    continue
                yield target.row(dict(zip(keys, texts, strict=True)), number, "line")
        except (OSError, EOFError, zlib.error, UnreadableError) as error:
            raise CorpusError(
                f"{source.shown} or {target.shown} cannot be read ({first_line(error)}); download "
                "it again"
            ) from error
