"""Reads the rows of a file: JSON, plain text, gzip of them, and what the sandbox parses."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import json
import math
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from knn_logits.corpus.documents import Item
from knn_logits.corpus.formats import (
    JSON,
    JSON_LINES,
    LINES,
    PLAIN,
    holds_rows,
    holds_text,
    reader_of,
    refusal,
)
from knn_logits.corpus.gathering import Gathering
from knn_logits.corpus.parsers import Begin, Fields, Left, Part, plain
from knn_logits.corpus.rows import (
    LONGEST_ROW,
    Row,
    Schema,
    Skip,
    SourceFile,
    UnreadableError,
    display_name,
    fault_of,
    first_line,
    lifted,
    parse_row,
)
from knn_logits.corpus.sandbox import Sandbox
from knn_logits.corpus.texts import CHUNK, characters, recognised
from knn_logits.errors import CorpusError

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_HEAD = 4096
MOST_UNPACKED = _MOST_CHECKED = 1 << 30
# The most parts that are named of those left out of a file. The rest is counted.
_MOST_LEFT = 100
_BETWEEN = "::"
# The most characters that a file may give: in any case, and for each of its bytes.
MOST_TEXT, MOST_TEXT_A_BYTE = 64 << 20, 300
# An empty line takes time as well: as much as a line of this length.
_LINE_COST = bytes(64)
_IN_PROCESS = {PLAIN: plain.read, LINES: plain.read_lines}


@dataclass(frozen=True)
class Reading:
    """How files are read. A part that is left out, or a note on a file, has a name and a reason."""

    schema: Schema
    skip: Skip  # for what cannot be read; it may raise
    note: Skip
    sandbox: Sandbox


def read_rows(file: SourceFile, reading: Reading) -> Iterator[Row]:
    """Reads the rows of one file, one at a time."""
    rows, packed, before = 0, False, ""
    try:
        with ExitStack() as stack:
            raw: Any = stack.enter_context(file.path.open("rb"))
            reader = reader_of(file.path.name)
            # A pipe can be read only once, and most readers read twice.
            if file.size is None and reader != JSON_LINES:
                copy: Any = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(raw, copy, CHUNK)
                copy.seek(0)
                raw = io.BufferedReader(copy, CHUNK)
            packed = file.path.name.lower().endswith(".gz") or _is_packed(raw)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            read = {JSON_LINES: _json_lines, JSON: _json}.get(reader, _document)
            found = read(stream, packed, file, reading)
            for row in _bounded(found, file, lambda row: map(str, row.fields.values())):
                rows += 1
                before = f"; the {rows} rows before that were read"
                if read is not _document:
                    file.advance(raw)
                yield row
    except (OSError, EOFError, zlib.error) as error:
        reason = first_line(error)
        if packed and not (isinstance(error, OSError) and error.errno):
            reason = f"damaged gzip ({reason})"
        reading.skip(file.shown, reason + before)
    except UnreadableError as error:
        reading.skip(file.shown, f"{error}{before}")
    except UnicodeError:  # its encoding was checked before
        reading.skip(file.shown, f"it has changed while it was read{before}; read it again")


def _bounded(
    items: Iterator[Item], file: SourceFile, texts: Callable[[Item], Iterable[str | bytes]]
) -> Iterator[Item]:
    """Refuses a file that has more text than one of its size can have; a pipe has no size."""
    most = math.inf if file.size is None else max(MOST_TEXT, MOST_TEXT_A_BYTE * file.size)
    for item in items:
        most -= sum(map(len, texts(item)))
        if most < 0:
            raise UnreadableError(
                "it yields more text than a document of its size can contain, as in a zip bomb; "
                "split it if you trust it"
            )
        yield item


def _is_packed(raw: Any) -> bool:
    return bytes(raw.peek(2)).startswith(_GZIP_MAGIC)


def _document(stream: Any, packed: bool, file: SourceFile, reading: Reading) -> Iterator[Row]:
    """Reads a file that is one document, a mailbox or a table."""
    name, schema = file.path.name, reading.schema
    head = stream.read(_HEAD)
    stream.seek(0)
    reader = reader_of(name, head)
    if schema.pairs and not holds_rows(reader):
        reading.skip(file.shown, f"plain text has no {' and '.join(schema.keys)}")
        return
    if holds_text(reader):
        reason = refusal(name, head)
        if reason is not None:
            raise UnreadableError(reason)
        encoding = recognised(stream, schema.encoding)
        if encoding.guessed:
            reading.note(
                file.shown,
                f"read as {encoding.name}, which is a guess; --encoding names another encoding",
            )
        schema = replace(schema, encoding=encoding.name)
    if not head:
        raise UnreadableError("empty")
    if reader in _IN_PROCESS:
        yield from _gathered(_IN_PROCESS[reader](stream, schema), reader, file, reading)
    elif not packed and file.size is not None:
        yield from _parsed_rows(file.path, reader, file, reading, schema)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "document"
            _unpack(stream, path)
            yield from _parsed_rows(path, reader, file, reading, schema)


def _unpack(stream: BinaryIO, path: Path) -> None:
    size = 0
    with path.open("wb") as copy:
        while chunk := stream.read(CHUNK):
            size += len(chunk)
            if size > MOST_UNPACKED:
                raise UnreadableError(
                    f"it unpacks to more than {MOST_UNPACKED:,} bytes; unpack it yourself if you "
                    "trust it"
                )
            copy.write(chunk)


def _parsed_rows(
    path: Path, reader: str, file: SourceFile, reading: Reading, schema: Schema
) -> Iterator[Row]:
    try:
        yield from _gathered(reading.sandbox.parts(path, reader, schema), reader, file, reading)
    except CorpusError as error:
        raise CorpusError(f"{file.shown}{error}") from None


def _gathered(
    parts: Iterable[Part], reader: str, file: SourceFile, reading: Reading
) -> Iterator[Row]:
    """Makes rows of the parts that a parser gives."""
    document: Gathering | None = None
    left, has_text = 0, False
    try:
        for part in parts:
            if isinstance(part, Left):
                left += 1
                if left <= _MOST_LEFT:
                    report = reading.skip if part.damaged else reading.note
                    where = f"{file.shown}, {part.where}" if part.where else file.shown
                    report(where, part.reason)
                continue
            if isinstance(part, Begin):
                if document is not None:
                    yield from document.rest()
                document = _beginning(file, part)
                continue
            if isinstance(part, Fields):
                fault = fault_of(part.fields, reading.schema.keys)
                if fault:  # the child has checked this, but it may have been taken over
                    raise CorpusError(f", row {part.number}: {fault}; fix or remove this row")
                yield file.row(part.fields, part.number, "row")
            else:
                document = document or _beginning(file, Begin())
                has_text = has_text or bool(part.text.strip())
                yield from document.add(part)
            if file.size is not None:
                file.consumed = max(file.consumed, int(file.size * part.done))
    except UnreadableError as error:
        if not has_text:
            raise
        reading.skip(file.shown, f"{error}; the text before that was read")
    if left > _MOST_LEFT:
        reading.skip(file.shown, f"{left - _MOST_LEFT:,} other parts are left out as well")
    if document is not None:
        yield from document.rest()
    elif not holds_rows(reader):
        raise UnreadableError("empty")


def _beginning(file: SourceFile, begin: Begin) -> Gathering:
    title: dict[str, object] = {"title": begin.title} if begin.title else {}
    return Gathering(file.row({"uri": file.name, **title}, begin.number, "message"))


def _json(stream: Any, packed: bool, file: SourceFile, reading: Reading) -> Iterator[Row]:
    """Reads a `.json` file: lines, an object, a list, or any other text."""
    schema = reading.schema
    # Many .json files hold JSON lines. The first line tells, so the file need not be read whole.
    first = b""
    with contextlib.suppress(UnreadableError):  # a list may be in one long line
        first = next(_lines(stream, schema.encoding), b"")
    stream.seek(0)
    if _is_row(first, schema.keys):
        yield from _json_lines(stream, packed, file, reading)
        return
    data = stream.read(LONGEST_ROW + 1) if packed else stream.read()
    if packed and len(data) > LONGEST_ROW:
        raise UnreadableError(
            f"it unpacks to more than {LONGEST_ROW:,} bytes for a single JSON value; unpack it, "
            "or convert it to JSON lines"
        )
    copy = io.BytesIO(data)
    encoding = recognised(copy, schema.encoding).name
    text = "".join(characters(copy, encoding))
    rows = _rows_of_json(text, file, schema.keys)
    if rows:
        yield from rows
    elif schema.pairs:
        reading.skip(file.shown, f"plain text has no {' and '.join(schema.keys)}")
    else:
        copy.seek(0)
        lines = plain.read_lines(copy, replace(schema, encoding=encoding))
        yield from _gathered(lines, JSON, file, reading)


def _lines(stream: Any, encoding: str | None) -> Iterator[bytes]:
    """Yields the lines of a stream in UTF-8. A line that is not text is lost alone."""
    wide = stream.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    coding = "utf-16" if wide else encoding or "utf-8"
    reader: Any = stream
    if coding != "utf-8":
        reader = io.TextIOWrapper(stream, coding, errors="surrogateescape", newline="\n")
    try:
        for number in itertools.count(1):
            line = reader.readline(LONGEST_ROW)
            if not line:
                return
            line = line if reader is stream else line.encode("utf-8", "surrogateescape")
            if len(line) >= LONGEST_ROW and not line.endswith(b"\n"):
                raise UnreadableError(
                    f"line {number} is longer than {LONGEST_ROW:,} bytes; split it, or save it "
                    "as one document"
                )
            yield line
    finally:
        if reader is not stream:
            reader.detach()


def _json_lines(stream: Any, packed: bool, file: SourceFile, reading: Reading) -> Iterator[Row]:
    keys = reading.schema.keys
    lines = _lines(stream, reading.schema.encoding)
    lines = _bounded(lines, file, lambda line: (line, _LINE_COST))
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(_BOM)
        if not line.strip():
            continue
        where = f"{file.shown}, line {number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            reading.skip(where, "not UTF-8 text: name its encoding, as in --encoding latin-1")
            continue
        try:
            fields = parse_row(text, keys)
        except ValueError as error:
            # A damaged gzip file often gives a broken row before its checksum is reached. Reading
            # on tells which is broken. It is not worth the wait in a file of many gigabytes.
            checked = 0
            while packed and checked < _MOST_CHECKED and (chunk := stream.read(CHUNK)):
                checked += len(chunk)
            raise CorpusError(f"{where}: {error}; fix or remove this line") from None
        yield file.row(fields, number)


def _rows_of_json(text: str, file: SourceFile, keys: tuple[str, ...]) -> list[Row]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    items = value if isinstance(value, list) else [value]
    if any(fault_of(lifted(item, keys), keys) for item in items):
        return []
    if items is not value:
        return [file.row(value)]
    return [file.row(item, number, "item") for number, item in enumerate(items, start=1)]


def _is_row(line: bytes, keys: tuple[str, ...]) -> bool:
    try:
        parse_row(line.removeprefix(_BOM).decode("utf-8"), keys)
    except ValueError:
        return False
    return True


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
    pairs = itertools.zip_longest(_parallel_lines(source), _parallel_lines(target))
    for number, pair in enumerate(pairs, start=1):
        if None in pair:
            short, long = (source, target) if pair[0] is None else (target, source)
            raise CorpusError(
                f"{short.shown} has only {number - 1} lines, fewer than {long.shown}: parallel "
                "files need the same number of lines"
            )
        where = f"{target.shown}, line {number}"
        try:
            texts = [line.decode("utf-8").rstrip("\r\n") for line in pair]
        except UnicodeDecodeError:
            skip(where, "not UTF-8 text")
            continue
        if number == 1:
            texts = [text.removeprefix("\ufeff") for text in texts]
        yield target.row(dict(zip(keys, texts, strict=True)), number)


def _parallel_lines(file: SourceFile) -> Iterator[bytes]:
    try:
        with contextlib.closing(file.path.open("rb")) as raw:
            stream: Any = gzip.GzipFile(fileobj=raw) if _is_packed(raw) else raw
            for line in _lines(stream, None):
                file.advance(raw)
                yield line
    except (OSError, EOFError, zlib.error, UnreadableError) as error:
        raise CorpusError(
            f"{display_name(str(file.path))} cannot be read ({first_line(error)}); download it "
            "again"
        ) from error
