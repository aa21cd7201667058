"""Reads the rows of a parquet file, one batch at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.rows import (
    Row,
    Skip,
    SourceFile,
    column_row,
    field_option,
    first_line,
    lifted,
    listed,
)
from knn_logits.errors import CorpusError

_BUFFER = 1 << 20


def read_parquet(file: SourceFile, keys: tuple[str, ...], skip: Skip) -> Iterator[Row]:
    """Reads the rows of a parquet file.

    Raises:
        CorpusError: when the file lacks a wanted column, or a value in it is not a string.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    try:
        # With buffering ahead, the whole file would be in memory.
        options = {"pre_buffer": False, "buffer_size": _BUFFER, "page_checksum_verification": True}
        with pq.ParquetFile(file.path, **options) as table:
            names = table.schema_arrow.names
            for key in keys:
                if not _has_column(table.schema_arrow, key):
                    raise CorpusError(
                        f'{file.shown} has no column "{key}" among {listed(names)}; '
                        f"name the column with {field_option(key, keys)}"
                    )
            for batch in table.iter_batches(batch_size=64):
                columns = [_to_microseconds(column) for column in batch.columns]
                for index in range(batch.num_rows):
                    done += 1
                    where = f"{file.shown}, row {done}"
                    values = {}
                    for name, column in zip(names, columns, strict=True):
                        # A value that Python cannot hold loses only that value or its row.
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
        before = f"; the {done} rows before that were read" if done else ""
        skip(file.shown, reason + before)


def _has_column(schema: Any, key: str) -> bool:
    """Whether a table has a column, or a column with a field, written `column.field`."""
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
    # Python's times have no finer unit, and without pandas Arrow cannot convert finer ones.
    import pyarrow as pa

    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return column.cast(pa.time64("us"), safe=False)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return column.cast(pa.duration("us"), safe=False)
    return column
