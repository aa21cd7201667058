"""From one file to rows.

Knows suffixes, gzip, encodings, JSON and parquet. It does not know what a document is, which files
make a corpus, or whether an unreadable part is passed over or ends the run: `skip` decides that.
"""

import contextlib
import gzip
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from knn_logits.corpus.rows import (
    TEXT_KEYS,
    Row,
    Skip,
    SourceFile,
    column_row,
    fault_of,
    first_line,
    lifted,
    listed,
    parse_row,
)
from knn_logits.errors import CorpusError

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20
_MAX_CHECKED = 1 << 30


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
            fields = parse_row(text, keys)
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
                if not _has_column(table.schema_arrow, key):
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
                    lifted(values, keys)
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


def _has_column(schema: Any, key: str) -> bool:
    """Whether a table has a column, or a field of one that is written `column.field`."""
    import pyarrow as pa

    if key in schema.names:
        return True
    first, *path = key.split(".")
    kind = schema.field(first).type if path and first in schema.names else None
    for name in path:
        if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return False
        kind = kind.field(name).type
    return kind is not None


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
