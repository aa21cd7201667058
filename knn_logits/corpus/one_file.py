"""Reads the rows of one file.

This module knows suffixes, gzip and JSON. It does not know what a document is, or which files make
a corpus. The callback `skip` decides whether an unreadable part is skipped or ends the run.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from knn_logits.corpus.encoding import UnreadableError, characters, recognised
from knn_logits.corpus.extracting import Extractor
from knn_logits.corpus.kinds import Parsed, has_headings, parsed_kind, refusal
from knn_logits.corpus.parsers.blocks import Begin, Left, RefusedError
from knn_logits.corpus.rows import (
    Row,
    Skip,
    SourceFile,
    Wanted,
    fault_of,
    first_line,
    lifted,
    parse_row,
)
from knn_logits.corpus.tables import read_parquet
from knn_logits.corpus.texts import Gathering, plain_rows
from knn_logits.errors import CorpusError

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20
_HEAD = 4096
_MAX_CHECKED = 1 << 30
_ROWS = (".jsonl", ".ndjson", ".json")
# Even logs pack to a hundredth at best.
_LEAST_SUSPECT, _MOST_RATIO = 64 << 20, 200


def is_text(path: Path) -> bool:
    """Whether a file's suffix makes it plain text, which is one document without fields."""
    return not _stem(path).endswith((".jsonl", ".ndjson", ".json", ".parquet"))


def read_rows(
    file: SourceFile, wanted: Wanted, skip: Skip, note: Skip, extractor: Extractor
) -> Iterator[Row]:
    """Reads the rows of one file, one at a time.

    Args:
        file: The file. Its suffix decides its type; gzip is also recognised by its first two bytes.
        wanted: The fields of the file's rows, and its encoding.
        skip: Called with a name and a reason for each part that cannot be read.
        note: Called with a name and what the user should know about a file that was read.
        extractor: Parses documents that are not plain text.

    Raises:
        CorpusError: when a row is not an object with these fields, or when a parquet file has no
            such column.
    """
    if _stem(file.path).endswith(".parquet"):
        yield from read_parquet(file, wanted.keys, skip)
        return
    rows = 0
    zipped = False
    try:
        with file.path.open("rb") as raw:
            zipped = file.path.name.lower().endswith(".gz") or raw.peek(2).startswith(_GZIP_MAGIC)
            if zipped:
                _check_packed(raw, file)
            with contextlib.ExitStack() as stack:
                stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw) if zipped else raw)
                if _stem(file.path).endswith(_ROWS):
                    found = _read_stream(stream, zipped, file, wanted, skip)
                else:
                    if file.size is None:  # a pipe can be read only once, and this reads it twice
                        stream = stack.enter_context(_stored(stream))
                    found = _read_document(stream, zipped, file, wanted, skip, note, extractor)
                for row in found:
                    rows += 1
                    file.advance(raw)
                    yield row
    except (OSError, EOFError, zlib.error) as error:
        reason = first_line(error)
        if zipped and not (isinstance(error, OSError) and error.errno):
            reason = f"damaged gzip ({reason})"
        skip(file.shown, reason + already_read(rows))
    except (UnreadableError, RefusedError) as error:
        skip(file.shown, str(error))


def _stem(path: Path) -> str:
    return path.name.lower().removesuffix(".gz")


def already_read(rows: int) -> str:
    """Says in a message how many rows were read before the damage."""
    return f"; the {rows} rows before that were read" if rows else ""


def _stored(stream: BinaryIO) -> BinaryIO:
    copy = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 (the caller closes it)
    shutil.copyfileobj(stream, copy, _CHUNK)
    copy.seek(0)
    return copy


def _check_packed(raw: BinaryIO, file: SourceFile) -> None:
    """Refuses gzip that unpacks to far more than packed text would."""
    if file.size is None:
        return
    unpacked = 0
    # Damage is not reported here, since it is found again when the file is read.
    with contextlib.suppress(OSError, EOFError, zlib.error), gzip.GzipFile(fileobj=raw) as stream:
        while chunk := stream.read(_CHUNK):
            unpacked += len(chunk)
            if unpacked > _LEAST_SUSPECT:
                if unpacked > _MOST_RATIO * max(1, raw.tell()):
                    raise UnreadableError(
                        f"{raw.tell():,} bytes of gzip unpack to more than {unpacked:,}, as with a "
                        "bomb; unpack it yourself if it is sound"
                    )
                break
    raw.seek(0)


def _read_document(
    stream: BinaryIO,
    zipped: bool,
    file: SourceFile,
    wanted: Wanted,
    skip: Skip,
    note: Skip,
    extractor: Extractor,
) -> Iterator[Row]:
    """Reads a file that is one document, or a mailbox."""
    stem = _stem(file.path)
    head = stream.read(_HEAD)
    stream.seek(0)
    kind = parsed_kind(stem, head)
    if wanted.pairs:
        skip(file.shown, f"plain text has no {' and '.join(wanted.keys)}")
    elif kind is None:
        reason = refusal(stem, head)
        if reason is not None:
            raise UnreadableError(reason)
        encoding = recognised(stream, wanted.encoding)
        if encoding.guessed:
            note(
                file.shown,
                f"read as {encoding.name}, which is a guess; --encoding names another encoding",
            )
        row = Row({"uri": file.name}, file.name, file.shown)
        yield from plain_rows(characters(stream, encoding), row, headings=has_headings(stem))
    elif not head:
        raise UnreadableError("empty")
    elif zipped or file.size is None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "document"
            with path.open("wb") as copy:
                shutil.copyfileobj(stream, copy, _CHUNK)
            yield from _parsed_rows(path, kind, file, wanted, skip, note, extractor)
    else:
        yield from _parsed_rows(file.path, kind, file, wanted, skip, note, extractor)


def _parsed_rows(
    path: Path,
    kind: Parsed,
    file: SourceFile,
    wanted: Wanted,
    skip: Skip,
    note: Skip,
    extractor: Extractor,
) -> Iterator[Row]:
    document: Gathering | None = None
    some = False
    try:
        for part in extractor.parts(path, kind, wanted.encoding):
            if isinstance(part, Left):
                tell = skip if part.damaged else note
                tell(f"{file.shown}, {part.where}", part.reason)
            elif isinstance(part, Begin):
                if document is not None:
                    yield from document.rest()
                document = _beginning(file, part)
            else:
                document = document or _beginning(file, Begin())
                some = some or bool(part.text.strip())
                yield from document.add(part.text, part.place, part.fragment)
                if file.size is not None:
                    file.consumed = max(file.consumed, int(file.size * part.done))
    except RefusedError as error:
        if not some:
            raise
        skip(file.shown, f"{error}; the text before that was read")
    if document is None:
        raise UnreadableError("empty")
    yield from document.rest()


def _beginning(file: SourceFile, begin: Begin) -> Gathering:
    number = f":{begin.number}" if begin.number else ""
    where = f"{file.shown}, message {begin.number}" if begin.number else file.shown
    fields: dict[str, object] = {"uri": file.name}
    if begin.title:
        fields["title"] = begin.title
    return Gathering(Row(fields, file.name + number, where))


def _read_stream(
    stream: BinaryIO, zipped: bool, file: SourceFile, wanted: Wanted, skip: Skip
) -> Iterator[Row]:
    """Reads JSON lines, or a file of JSON of any other form."""
    stem, keys = _stem(file.path), wanted.keys
    start = stream.read(4) if file.size is not None else b""
    if file.size is not None:
        stream.seek(0)
    wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    coded = "utf-16" if wide else wanted.encoding or "utf-8"
    lines: Iterable[bytes] = stream if coded == "utf-8" else _as_utf8(stream, coded)
    if not stem.endswith(".json"):
        yield from _read_lines(lines, stream, zipped, file, keys, skip)
        return
    # Many .json files hold JSON lines. The first line tells, so the file need not be read whole.
    first = next(iter(lines), b"")
    lines = itertools.chain([first], lines)
    if _is_row(first, keys):
        yield from _read_lines(lines, stream, zipped, file, keys, skip)
        return
    data = b"".join(lines)
    copy = io.BytesIO(data)
    encoding = recognised(copy)
    text = "".join(characters(copy, encoding))
    rows = _rows_of_json(text, file, keys)
    if rows:
        yield from rows
    elif wanted.pairs:
        skip(file.shown, f"plain text has no {' and '.join(keys)}")
    else:
        yield from plain_rows([text], Row({"uri": file.name}, file.name, file.shown))


def _as_utf8(stream: BinaryIO, encoding: str) -> Iterator[bytes]:
    # Only a line that is not text in this encoding is lost, as with UTF-8.
    reader = io.TextIOWrapper(stream, encoding, errors="surrogateescape", newline="\n")
    for line in reader:
        yield line.encode("utf-8", "surrogateescape")
    reader.detach()


def _read_lines(
    lines: Iterable[bytes],
    stream: BinaryIO,
    zipped: bool,
    file: SourceFile,
    keys: tuple[str, ...],
    skip: Skip,
) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(_BOM)
        if not line.strip():
            continue
        where = f"{file.shown}, line {number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            skip(where, "not UTF-8 text: name its encoding, as in --encoding latin-1")
            continue
        try:
            fields = parse_row(text, keys)
        except ValueError as error:
            if zipped:
                _raise_if_damaged(stream)
            raise CorpusError(f"{where}: {error}; correct or remove this line") from None
        yield Row(fields, f"{file.name}:{number}", where)


def _raise_if_damaged(stream: BinaryIO) -> None:
    # A damaged gzip file often gives a broken row before its checksum is reached. Reading on tells
    # whether the row or the file is broken. It is not worth the wait in a file of many gigabytes.
    checked = 0
    while checked < _MAX_CHECKED and (chunk := stream.read(_CHUNK)):
        checked += len(chunk)


def _rows_of_json(text: str, file: SourceFile, keys: tuple[str, ...]) -> list[Row]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, dict):
        lifted(value, keys)
        return [] if fault_of(value, keys) else [Row(value, file.name, file.shown)]
    if not isinstance(value, list) or any(fault_of(lifted(item, keys), keys) for item in value):
        return []
    return [
        Row(item, f"{file.name}:{number}", f"{file.shown}, item {number}")
        for number, item in enumerate(value, start=1)
    ]


def _is_row(line: bytes, keys: tuple[str, ...]) -> bool:
    try:
        parse_row(line.removeprefix(_BOM).decode("utf-8"), keys)
    except ValueError:
        return False
    return True
