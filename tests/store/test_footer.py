import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from handmade import document_records

from knn_logits.store.documents import write_documents
from knn_logits.store.footer import read_footer


def read(data):
    return read_footer(pa.BufferReader(data), len(data))


def written(table, **settings):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **settings)
    return sink.getvalue().to_pybytes()


TABLE = pa.table({"a": list(range(1000)), "b": ["x" * (n % 7) for n in range(1000)]})


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
def test_it_says_what_arrow_says(settings):
    data = written(TABLE, **settings)
    footer, expected = read(data), pq.ParquetFile(pa.BufferReader(data)).metadata
    assert footer.columns == [("a", "int64"), ("b", "string")]
    assert len(footer.groups) == expected.num_row_groups
    for number, (rows, columns) in enumerate(footer.groups):
        group = expected.row_group(number)
        assert rows == group.num_rows
        for place, column in enumerate(columns):
            told = group.column(place)
            packing = told.compression.lower().replace("uncompressed", "none")
            assert (column.packing, column.values) == (packing, told.num_values)
            assert column.unpacked == told.total_uncompressed_size


def test_of_the_packages_own_table(tmp_path):
    write_documents(tmp_path / "a.parquet", document_records([[1, 2], [3]]))
    footer = read((tmp_path / "a.parquet").read_bytes())
    assert [name for name, _ in footer.columns] == [
        "first",
        "length",
        "id",
        "title",
        "uri",
        "metadata",
    ]
    assert [rows for rows, _ in footer.groups] == [2]


@pytest.mark.parametrize("packing", ["gzip", "zstd", "brotli", "lz4"])
def test_other_packings(packing):
    _, columns = read(written(TABLE, compression=packing)).groups[0]
    assert {column.packing for column in columns} == {"another way"}


def test_other_types():
    table = pa.table({"a": [1.5], "b": [True], "c": pa.array([1], pa.int32())})
    assert {kind for _, kind in read(written(table)).columns} == {"another"}
    with pytest.raises(ValueError, match="nested"):
        read(written(pa.table({"a": [[1]]})))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 100, b"\xff\xff\xff\xffPAR1", b"\0" * 8])
def test_what_has_no_footer(data):
    with pytest.raises(ValueError, match="footer"):
        read(data)


def test_a_damaged_footer_is_refused_or_read_but_never_more():
    chance = random.Random(0)
    data = written(TABLE, row_group_size=300)
    size = int.from_bytes(data[-8:-4], "little")
    refused = 0
    for _ in range(5000):
        changed = bytearray(data)
        for _ in range(chance.choice([1, 1, 2, 8])):
            place = len(data) - 1 - chance.randrange(size + 8)
            changed[place] = chance.choice([0, 0xFF, 0x7F, 0x80, chance.randrange(256)])
        try:
            footer = read(bytes(changed))
        except ValueError:
            refused += 1
        else:
            assert all(rows >= 0 for rows, _ in footer.groups)
    assert refused > 1000


def test_lists_and_numbers_without_end():
    for body in (b"\x19\xfc" + b"\xff" * 9 + b"\x01", b"\x15" + b"\xff" * 30, b"\x1c" * 1000):
        with pytest.raises(ValueError, match=r"footer"):
            read(b"PAR1" + body + len(body).to_bytes(4, "little") + b"PAR1")
