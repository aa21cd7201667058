import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from handmade import document_records

from knn_logits.store.documents import write_documents
from knn_logits.store.footer import check_footer

ROWS = 1000
TABLE = pa.table({"a": list(range(ROWS)), "b": ["x" * (n % 7) for n in range(ROWS)]})
COLUMNS = [("a", "int64"), ("b", "string")]


def check(data, columns=COLUMNS, rows=ROWS):
    check_footer(pa.BufferReader(data), columns, rows)


def written(table=TABLE, **settings):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **settings)
    return sink.getvalue().to_pybytes()


def with_footer(change, data):
    """The file with its footer changed."""
    size = int.from_bytes(data[-8:-4], "little")
    footer = change(data[-8 - size : -8])
    return data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"row_group_size": 100},
        {"compression": "none"},
        {"use_dictionary": False},
        {"write_statistics": False},
        {"data_page_version": "2.0"},
        {"write_page_index": True},
        {"store_schema": False},
        {"version": "1.0"},
    ],
)
def test_tables_of_arrow(settings):
    data = written(**settings)
    check(data)
    for columns, rows in [
        (COLUMNS[:1], ROWS),
        ([("a", "int64"), ("c", "string")], ROWS),
        ([("a", "string"), ("b", "string")], ROWS),
        (COLUMNS, ROWS - 1),
    ]:
        with pytest.raises(ValueError, match=r"columns are missing|documents"):
            check(data, columns, rows)


def test_a_table_of_the_package(tmp_path):
    write_documents(tmp_path / "a.parquet", document_records([[1, 2], [3]]))
    texts = [(name, "string") for name in ("id", "title", "uri", "metadata")]
    data = (tmp_path / "a.parquet").read_bytes()
    check(data, [("first", "int64"), ("length", "int64"), *texts], 2)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "brotli", "lz4"])
def test_compressions_without_a_bound(compression):
    with pytest.raises(ValueError, match="packed in a way"):
        check(written(compression=compression))


def test_columns_of_other_types():
    for column in ([1.5], [True], pa.array([1], pa.int32())):
        with pytest.raises(ValueError, match="of another type"):
            check(written(pa.table({"a": column, "b": ["x"]})), rows=1)
    with pytest.raises(ValueError, match="nested"):
        check(written(pa.table({"a": [[1]], "b": ["x"]})), rows=1)


def varint(number):
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*data, number))


# The compression of a column (field 4, a 32-bit snappy) and its number of values (field 5).
COMPRESSION, VALUES = b"\x15\x02", b"\x16" + varint(2 * ROWS)
MANY = 1 << 40


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (b"\x16" + varint(2 * MANY) + b"\x05\x0a" + varint(2 * ROWS), "do not ascend"),
        (b"\x16" + varint(2 * MANY) + b"\x06\x0a" + varint(2 * ROWS), "do not ascend"),
        (b"\x16" + varint(2 * MANY), "other lengths"),
        (b"\x15" + varint(2 * ROWS), "a field 5 of another type"),
        (b"\x06" + varint(2 * (5 + (1 << 16))) + varint(2 * MANY), "do not ascend"),
    ],
    ids=["second of another type", "second", "many", "another type", "number that wraps"],
)
def test_what_arrow_reads_in_another_way_is_refused(fields, message):
    def change(footer):
        assert footer.count(COMPRESSION + VALUES) == len(COLUMNS)
        return footer.replace(COMPRESSION + VALUES, COMPRESSION + fields)

    data = with_footer(change, written())
    if message == "do not ascend" and fields[:1] == b"\x16" and b"\x05\x0a" in fields:
        metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
        assert metadata.row_group(0).column(0).num_values == MANY
    with pytest.raises(ValueError, match=message):
        check(data)


def test_lists_of_other_types_are_refused():
    # The encodings of a column: field 2, a list of three 32-bit numbers after the type.
    for items in (b"\x19\x36", b"\x19\x38", b"\x19\x3c"):
        data = with_footer(lambda footer, to=items: footer.replace(b"\x19\x35", to), written())
        with pytest.raises(ValueError, match="list of another type"):
            check(data)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 100, b"\xff\xff\xff\xffPAR1", b"\0" * 8])
def test_what_has_no_footer(data):
    with pytest.raises(ValueError, match="footer"):
        check(data)


def test_damaged_footers_raise_nothing_else():
    chance = random.Random(0)
    data = written(row_group_size=300)
    size = int.from_bytes(data[-8:-4], "little")
    refused = 0
    for _ in range(2000):
        changed = bytearray(data)
        for _ in range(chance.choice([1, 1, 2, 8])):
            place = len(data) - 1 - chance.randrange(size + 8)
            changed[place] = chance.choice([0, 0xFF, 0x7F, 0x80, chance.randrange(256)])
        try:
            check(bytes(changed))
        except ValueError:
            refused += 1
    assert refused > 500


def test_lists_and_numbers_without_end():
    for body in (b"\x29\xfc" + b"\xff" * 9 + b"\x01", b"\x15" + b"\xff" * 30, b"\x1c" * 1000):
        with pytest.raises(ValueError, match="footer"):
            check(b"PAR1" + body + len(body).to_bytes(4, "little") + b"PAR1")
