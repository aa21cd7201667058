"""Reads the rows of a parquet file, one batch at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.parsers import Fields, Left, Part
from knn_logits.corpus.rows import (
    Schema,
    UnreadableError,
    column_fields,
    field_option,
    first_line,
    lifted,
    listed,
)
from knn_logits.errors import CorpusError

_BUFFER = 1 << 20
# The most rows and, by the file's own account, bytes of a batch.
_ROWS, _BYTES = 64, 16 << 20


def read(stream: Any, schema: Schema) -> Iterator[Part]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_io_thread_count(1)
    try:
        # With buffering ahead, the whole file would be in memory.
        options = {"pre_buffer": False, "buffer_size": _BUFFER, "page_checksum_verification": True}
        with pq.ParquetFile(stream, **options) as table:
            yield from _rows(table, schema)
    except MemoryError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = first_line(error)
        if not (isinstance(error, OSError) and error.errno):
            reason = f"damaged parquet ({reason})"
        raise UnreadableError(reason) from None


def _rows(table: Any, schema: Schema) -> Iterator[Part]:
    names, count = table.schema_arrow.names, max(1, table.metadata.num_rows)
    for key in schema.keys:
        if not _has_column(table.schema_arrow, key):
            raise CorpusError(
                f' has no column "{key}" among {listed(names)}; set it with '
                f"{field_option(key, schema.keys)}"
            )
    groups = (table.metadata.row_group(group) for group in range(table.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    rows = max(1, min(_ROWS, _BYTES * count // max(1, size)))
    number = 0
    for batch in table.iter_batches(batch_size=rows, use_threads=False):
        columns = [_to_microseconds(column) for column in batch.columns]
        for index in range(batch.num_rows):
            number += 1
            values = {}
            for name, column in zip(names, columns, strict=True):
                # A value that Python cannot hold loses only that value or its row.
                with contextlib.suppress(ValueError, OverflowError):
                    values[name] = column[index].as_py()
            lifted(values, schema.keys)
            if any(key not in values for key in schema.keys):
                yield Left(f"row {number}", "not UTF-8 text")
                continue
            fields = column_fields(values, schema.keys, f", row {number}")
            yield Fields(fields, number, number / count)


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
    if getattr(kind, "unit", None) != "ns":
        return column
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    coarser = pa.time64("us") if pa.types.is_time64(kind) else pa.duration("us")
    return column.cast(coarser, safe=False)
