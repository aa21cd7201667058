"""Reads the rows of a parquet file, one batch at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.parsers import Fields, Part
from knn_logits.corpus.rows import fields_of, plain_values
from knn_logits.errors import CorpusError

_BUFFER = 1 << 20
# The most rows and, by the file's own account, bytes of a batch.
_ROWS, _BYTES = 64, 16 << 20


def read(stream: Any, keys: tuple[str, ...]) -> Iterator[Part]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_io_thread_count(1)
    # With buffering ahead, the whole file would be in memory.
    options = {"pre_buffer": False, "buffer_size": _BUFFER, "page_checksum_verification": True}
    with pq.ParquetFile(stream, **options) as table:
        yield from _rows(table, keys)


def _rows(table: Any, keys: tuple[str, ...]) -> Iterator[Part]:
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
