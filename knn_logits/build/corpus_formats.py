"""From one file to rows.

Knows suffixes, gzip, encodings, JSON and parquet. It does not know what a document is, which files
make a corpus, or whether an unreadable part is passed over or ends the run: `skip` decides that.
"""

import contextlib
import datetime
import decimal
import gzip
import itertools
import json
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from knn_logits.errors import CorpusError

TEXT_KEYS = ("text",)
PAIR_KEYS = ("source", "target")

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20
_MAX_NESTING = 100
_MAX_CHECKED = 1 << 30
_UNSHOWABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

Skip = Callable[[str, str], None]


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        fields: every field of the row, all of them values that JSON has. The keys asked for are
            present and strings.
        name: a name for the row where it has no id of its own, such as `guide/part.jsonl:12`.
        where: its place for a message, such as `corpus/guide/part.jsonl, line 12`.
    """

    fields: dict[str, object]
    name: str
    where: str


@dataclass
class SourceFile:
    """A file to read.

    Attributes:
        path: where it is.
        name: its path relative to the folder that was given, with forward slashes.
        size: its size on disk in bytes; None where it has none, as a pipe.
        consumed: how many of these bytes have been read so far.
    """

    path: Path
    name: str
    size: int | None
    consumed: int = 0

    @property
    def shown(self) -> str:
        """The path, fit to be printed in one line."""
        return display_name(str(self.path))

    def advance(self, raw: BinaryIO) -> None:
        """Take note of how far `raw`, this file opened, has been read."""
        if self.size is not None:
            self.consumed = min(raw.tell(), self.size)


def display_name(path: str) -> str:
    """Return `path` without control characters and without bytes that are not UTF-8."""
    return _UNSHOWABLE.sub("\ufffd", path)


def first_line(error: BaseException) -> str:
    """Return what an exception says, cut to one short line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return display_name((str(error).strip().splitlines() or [type(error).__name__])[0][:200])


def is_text(path: Path) -> bool:
    """Whether a file's suffix makes it a plain text file, that is, one document without fields."""
    return not _stem(path).endswith((".jsonl", ".ndjson", ".json", ".parquet"))


def read_rows(file: SourceFile, keys: tuple[str, ...], skip: Skip) -> Iterator[Row]:
    """Read the rows of one file, one at a time.

    Args:
        file: the file; its suffix decides its type, gzip is also known by its first two bytes.
        keys: the fields that every row must have, as strings.
        skip: called with a name and a reason for each part that cannot be read.

    Raises:
        CorpusError: a row is not an object with these fields, or a parquet file has no such column.
    """
    if _stem(file.path).endswith(".parquet"):
        yield from _read_parquet(file, keys, skip)
        return
    rows = 0
    zipped = False
    try:
        with file.path.open("rb") as raw:
            zipped = file.path.name.lower().endswith(".gz") or raw.peek(2).startswith(_GZIP_MAGIC)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw) if zipped else raw)
            for row in _read_stream(stream, zipped, file, keys, skip):
                rows += 1
                file.advance(raw)
                yield row
    except (OSError, EOFError, zlib.error) as error:
        reason = first_line(error)
        if zipped and not (isinstance(error, OSError) and error.errno):
            reason = f"damaged gzip ({reason})"
        skip(file.shown, reason + _already_read(rows))


def _stem(path: Path) -> str:
    return path.name.lower().removesuffix(".gz")


def _already_read(rows: int) -> str:
    return f"; the {rows} rows before that were read" if rows else ""


def _read_stream(
    stream: BinaryIO, zipped: bool, file: SourceFile, keys: tuple[str, ...], skip: Skip
) -> Iterator[Row]:
    stem = _stem(file.path)
    if stem.endswith((".jsonl", ".ndjson")):
        yield from _read_lines(stream, stream, zipped, file, keys, skip)
        return
    first = b""
    if stem.endswith(".json"):
        # Many a .json holds JSON lines; its first line tells, without the file being read whole.
        first = stream.readline()
        if _is_row(first, keys):
            lines = itertools.chain([first], stream)
            yield from _read_lines(lines, stream, zipped, file, keys, skip)
            return
    text = _read_text(first, stream, file, skip)
    if text is None:
        return
    if stem.endswith(".json"):
        rows = _rows_of_json(text, file, keys)
        if rows:
            yield from rows
            return
    if keys != TEXT_KEYS:
        skip(file.shown, f"plain text has no {' and '.join(keys)}")
        return
    yield Row({"text": text, "uri": file.name}, file.name, file.shown)


def _read_text(head: bytes, stream: BinaryIO, file: SourceFile, skip: Skip) -> str | None:
    # By chunks, so that a binary file of many gigabytes is left at its first bad byte.
    parts = []
    rest = b""
    for chunk in itertools.chain([head], iter(lambda: stream.read(_CHUNK), b"")):
        if b"\0" in chunk:
            skip(file.shown, "binary: it holds NUL bytes")
            return None
        chunk = rest + chunk
        try:
            parts.append(chunk.decode("utf-8"))
            rest = b""
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                skip(file.shown, "not UTF-8 text")
                return None
            parts.append(chunk[: error.start].decode("utf-8"))
            rest = chunk[error.start :]
    if rest:
        skip(file.shown, "not UTF-8 text")
        return None
    text = "".join(parts).removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n")


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
            skip(where, "not UTF-8 text")
            continue
        try:
            fields = _parse_row(text, keys)
        except ValueError as error:
            if zipped:
                _raise_if_damaged(stream)
            raise CorpusError(f"{where}: {error}; correct or remove this line") from None
        yield Row(fields, f"{file.name}:{number}", where)


def _raise_if_damaged(stream: BinaryIO) -> None:
    # A damaged gzip often gives a broken row before its checksum is reached. Reading on finds out
    # which of the two it is; a file of many gigabytes is not worth the wait.
    checked = 0
    while checked < _MAX_CHECKED and (chunk := stream.read(_CHUNK)):
        checked += len(chunk)


def _rows_of_json(text: str, file: SourceFile, keys: tuple[str, ...]) -> list[Row]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, dict):
        return [] if _fault(value, keys) else [Row(value, file.name, file.shown)]
    if not isinstance(value, list) or any(_fault(item, keys) for item in value):
        return []
    return [
        Row(item, f"{file.name}:{number}", f"{file.shown}, item {number}")
        for number, item in enumerate(value, start=1)
    ]


def _is_row(line: bytes, keys: tuple[str, ...]) -> bool:
    try:
        _parse_row(line.removeprefix(_BOM).decode("utf-8"), keys)
    except ValueError:
        return False
    return True


def _parse_row(text: str, keys: tuple[str, ...]) -> dict[str, object]:
    """Parse one line of JSON; a ValueError says what is wrong with it."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise ValueError(f"nested more than {_MAX_NESTING} levels deep") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise ValueError(f"not valid JSON ({str(error).partition(':')[0]})") from None
    fault = _fault(value, keys)
    if fault:
        raise ValueError(fault)
    return cast(dict[str, object], value)


def _fault(value: object, keys: tuple[str, ...]) -> str | None:
    """Say why a value is no row with these fields; None if it is one."""
    if not isinstance(value, dict):
        return f"{type_name(value)}, not a JSON object"
    for key in keys:
        if key not in value:
            return f'the object has no "{key}"'
        if not isinstance(value[key], str):
            return f'"{key}" is {type_name(value[key])}, not a string'
    if _nested_deeper(value, _MAX_NESTING):
        return f"nested more than {_MAX_NESTING} levels deep"
    return None


def type_name(value: object) -> str:
    """Return what JSON calls the type of `value`, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "an object" if isinstance(value, Mapping) else f"of type {type(value).__name__}"


def _nested_deeper(value: object, levels: int) -> bool:
    # What json reads near its own limit, it may fail to write from a deeper stack.
    if isinstance(value, dict):
        children: Iterable[object] = value.values()
    elif isinstance(value, list):
        children = value
    else:
        return False
    return levels == 0 or any(_nested_deeper(child, levels - 1) for child in children)


def _read_parquet(file: SourceFile, keys: tuple[str, ...], skip: Skip) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    try:
        # Buffered ahead, the whole file would come to lie in memory.
        options = {"pre_buffer": False, "buffer_size": _CHUNK, "page_checksum_verification": True}
        with pq.ParquetFile(file.path, **options) as table:
            names = table.schema_arrow.names
            for key in keys:
                if key not in names:
                    raise CorpusError(
                        f'{file.shown}: no column "{key}" among {listed(names)}; '
                        f'rename the column that holds it to "{key}"'
                    )
            for batch in table.iter_batches(batch_size=64):
                columns = [_to_microseconds(column) for column in batch.columns]
                for index in range(batch.num_rows):
                    done += 1
                    where = f"{file.shown}, row {done}"
                    values = {}
                    for name, column in zip(names, columns, strict=True):
                        # One value that Python cannot hold costs that value or its row.
                        with contextlib.suppress(ValueError, OverflowError):
                            values[name] = column[index].as_py()
                    if any(key not in values for key in keys):
                        skip(where, "not UTF-8 text")
                        continue
                    if file.size is not None:
                        file.consumed = file.size * done // table.metadata.num_rows
                    yield column_row(values, keys, f"{file.name}:{done}", where)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = first_line(error)
        if not (isinstance(error, OSError) and error.errno):
            reason = f"damaged parquet ({reason})"
        skip(file.shown, reason + _already_read(done))


def _to_microseconds(column: Any) -> Any:
    # Python's own times end there, and what Arrow does with more depends on pandas being installed.
    import pyarrow as pa

    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return column.cast(pa.time64("us"), safe=False)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return column.cast(pa.duration("us"), safe=False)
    return column


def column_row(values: Mapping[str, object], keys: tuple[str, ...], name: str, where: str) -> Row:
    """Make a row of the values of a table's columns.

    A null is a missing value: no text, thus an empty document.

    Raises:
        CorpusError: a value of `keys` is not a string.
    """
    texts = {key: "" if values[key] is None else values[key] for key in keys if key in values}
    fields = {key: _plain(value) for key, value in values.items() if key not in keys}
    fields = {key: value for key, value in fields.items() if value is not None} | texts
    fault = _fault(fields, keys)
    if fault:
        raise CorpusError(f"{where}: {fault}; correct or remove this row")
    return Row(fields, name, where)


def _plain(value: object) -> object:
    """Return a value that JSON has: dates and decimals as text, bytes and images as None."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta, uuid.UUID)):
        return str(value)
    return None


def listed(names: Iterable[str]) -> str:
    """Return the first ten names for a message."""
    names = list(names)
    shown = ", ".join(display_name(name) for name in names[:10])
    return f"{shown}, ..." if len(names) > 10 else shown or "none"
