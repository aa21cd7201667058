"""Reads rows of JSON, one on each line or all in one value, and rows of parquet."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.parsers import Fields, Left, Part
from knn_logits.corpus.parsers.prose import read_lines as read_text
from knn_logits.corpus.rows import LONGEST_ROW, UnreadableError, fields_of, first_line, plain_values
from knn_logits.corpus.texts import lines_of, most_text, recognised, too_much
from knn_logits.errors import CorpusError

# An empty line takes time as well: as much as this number of bytes.
_COST_OF_LINE = 64
_BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20
# The most rows and, by the file's own account, bytes of a batch.
_ROWS, _BYTES = 64, 16 << 20


def read_lines(stream: Any, keys: tuple[str, ...]) -> Iterator[Part]:
    """Reads JSON lines. A line that is not text is lost alone; one that is no row is an error."""
    size = os.fstat(stream.fileno()).st_size
    most = most_text(size)
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST_ROW), b""), start=1):
        if len(line) >= LONGEST_ROW and not line.endswith(b"\n"):
            raise UnreadableError(
                f"line {number} is longer than {LONGEST_ROW:,} bytes; split it, or save it as one "
                "document"
            )
        most -= len(line) + _COST_OF_LINE
        if most < 0:
            raise too_much()
        line = line.removeprefix(_BOM) if number == 1 else line
        if not line.strip():
            continue
        try:
            fields = _row(line, keys)
        except UnicodeDecodeError:
            yield Left(f"line {number}", "not UTF-8 text; save it as UTF-8")
            continue
        except ValueError as error:
            raise CorpusError(f", line {number}: {error}; fix or remove this line") from None
        yield Fields(fields, number, os.lseek(stream.fileno(), 0, os.SEEK_CUR) / max(1, size))


def read(stream: Any, keys: tuple[str, ...]) -> Iterator[Part]:
    """Reads a `.json` file: lines, an object, a list, or any other text."""
    # Many .json files hold JSON lines. The first line tells, so the file need not be read whole.
    first = stream.readline(LONGEST_ROW)
    stream.seek(0)
    try:
        _row(first.removeprefix(_BOM), keys)
    except ValueError:
        pass
    else:
        yield from read_lines(stream, keys)
        return
    most = max(LONGEST_ROW, os.fstat(stream.fileno()).st_size)
    data = stream.read(most + 1)
    if len(data) > most:
        raise UnreadableError(f"it unpacks to more than {most:,} bytes of JSON; unpack it")
    try:
        value = json.loads(data)
        items = value if isinstance(value, list) else [value]
        rows = [fields_of(item, keys) for item in items]
    except (ValueError, RecursionError):
        rows = []
    for number, fields in enumerate(rows, start=1):
        yield Fields(fields, number if items is value else 0, 1.0)
    if rows:
        return
    stream.seek(0)
    yield from read_text(lines_of(stream, recognised(stream)[0]))


def _row(line: bytes, keys: tuple[str, ...]) -> dict[str, object]:
    text = line.decode("utf-8")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({first_line(error)})") from None
    return fields_of(value, keys)


def read_parquet(stream: Any, keys: tuple[str, ...]) -> Iterator[Part]:
    """Reads the rows of a parquet file, one batch at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_io_thread_count(1)
    # With buffering ahead, the whole file would be in memory.
    options = {"pre_buffer": False, "buffer_size": _BUFFER, "page_checksum_verification": True}
    with pq.ParquetFile(stream, **options) as table:
        yield from _table_rows(table, keys)


def _table_rows(table: Any, keys: tuple[str, ...]) -> Iterator[Part]:
    count = max(1, table.metadata.num_rows)
    groups = (table.metadata.row_group(group) for group in range(table.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    rows = max(1, min(_ROWS, _BYTES * count // max(1, size)))
    batches = table.iter_batches(batch_size=rows, use_threads=False)
    every = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    for number, values in enumerate(every, start=1):
        try:
            fields = plain_values(fields_of(values, keys))
        except ValueError as error:
            raise CorpusError(f", row {number}: {error}") from None
        yield Fields(fields, number, number / count)
