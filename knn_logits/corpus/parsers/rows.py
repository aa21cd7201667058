"""Reads rows of JSON, one on each line or all in one value, of parquet, and of CSV."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.parsers import Fields, Left, Part, Text
from knn_logits.corpus.parsers.prose import read_lines as read_text
from knn_logits.corpus.rows import LONGEST_ROW, UnreadableError, fields_of, first_line, plain_values
from knn_logits.corpus.texts import lines_of, most_text, recognised, too_much
from knn_logits.errors import CorpusError
from knn_logits.store.blocks import with_names

# An empty line takes time as well: as much as this number of bytes.
_COST_OF_LINE = 64
_BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20
_ROWS = 16  # of a batch, which is in memory as a whole
_DELIMITERS = (",", ";", "\t", "|")
# The rows that are looked at, and the part of them that has as many cells as the header.
_SAMPLE, _USUAL_SHARE = 1000, 0.6
# The most rows above that with the names.
_MOST_ROWS_ABOVE = 10
# The names of columns stand in every row, so they are short and few.
_LONGEST_NAME, _MOST_COLUMNS = 60, 500
_NUMBER = re.compile(r"[-+(]?[.,]*\d[\d.,]*\)?%?")
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d")


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
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_io_thread_count(1)
    # With buffering ahead, the whole file would be in memory.
    options = {"pre_buffer": False, "buffer_size": _BUFFER, "page_checksum_verification": True}
    with pq.ParquetFile(stream, **options) as table:
        count = max(1, table.metadata.num_rows)
        batches = table.iter_batches(batch_size=_ROWS, use_threads=False)
        every = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, values in enumerate(every, start=1):
            try:
                fields = plain_values(fields_of(values, keys))
            except ValueError as error:
                raise CorpusError(f", row {number}: {error}") from None
            yield Fields(fields, number, number / count)


def read_csv(lines: Iterator[str]) -> Iterator[Part]:
    """Reads a table as lines that name their cells, since a row alone says little.

    Python's `csv.Sniffer` takes commas of prose for delimiters, so this tries each delimiter and
    takes that with the most rows of one width. A text without named columns is read as it is.
    """
    csv.field_size_limit(LONGEST_ROW)  # Python's own is 131,072
    sample = list(itertools.islice(lines, _SAMPLE))
    found = _table(sample)
    rest = itertools.chain(sample, lines)
    if found is None:
        yield Left("", "read as plain text: no first row names the columns of a table", False)
        yield from read_text(rest)
        return
    delimiter, above, names = found
    reader, line = csv.reader(rest, delimiter=delimiter), 1
    try:
        for number, row in enumerate(reader):
            cells = [" ".join(cell.split()) for cell in row]
            # Above the names stand a title and notes.
            kind = "p" if number < above else "th" if number == above else "tr"
            text = f"- {_named(names, cells)}" if kind == "tr" else delimiter.join(cells)
            if any(cells):
                yield Text(f"{text.strip(delimiter)}\n", kind, f"line {line}")
            line = reader.line_num + 1
    except csv.Error as error:
        yield Left(f"line {line}", f"the table is damaged from here on: {error}")


def _named(names: list[str], cells: list[str]) -> str:
    if not _fits(cells, names):  # such as a total or a footnote: no cell is sure of its column
        return "; ".join(filter(None, cells))
    return with_names(names, cells)


def _fits(row: list[str], names: list[str]) -> bool:
    """Whether a row has a cell for each column, and at most empty ones after them."""
    least = width = len(names)
    if all(0 < len(name) < _LONGEST_NAME for name in names):  # which parts of prose are not
        # The last cells may be missing. A total or a footnote has one or two cells.
        least = min(width, max(3, (width + 1) // 2))
    return len(row) >= least and not any(row[width:])


def _table(lines: list[str]) -> tuple[str, int, list[str]] | None:
    """The delimiter, the number of rows above that of the names, and the names."""
    best: tuple[float, int, tuple[str, int, list[str]]] | None = None
    for delimiter in _DELIMITERS:
        try:
            # The last row of a sample may end within a quotation.
            rows = list(csv.reader(lines, delimiter=delimiter, strict=len(lines) < _SAMPLE))
        except csv.Error:
            continue
        for above, row in enumerate(rows[:_MOST_ROWS_ABOVE]):
            width = max((n for n, cell in enumerate(row, start=1) if cell.strip()), default=0)
            names = [" ".join(name.split())[:_LONGEST_NAME] for name in row[:width]]
            below = [row for row in rows[above + 1 :] if any(row)]
            share = sum(_fits(row, names) for row in below) / max(1, len(below))
            whole = any(len(row) >= width for row in below)
            if share < _USUAL_SHARE or not whole or not _are_names(names):
                continue
            if best is None or (share, width) > best[:2]:
                best = share, width, (delimiter, above, names)
            break
    return best and best[2]


def _are_names(names: list[str]) -> bool:
    given = [name for name in names if name]
    numbers = [name for name in given if _NUMBER.fullmatch(name)]
    return (
        2 <= len(given) == len(set(given))
        and len(names) <= _MOST_COLUMNS
        and len(numbers) < len(given)
        and all(map(_YEAR.fullmatch, numbers))
    )
