"""gzip and Parquet: the same documents, and what is left of a damaged file."""

import datetime
import decimal
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from corpus_files import digits, lines_of, read, write, write_lines, write_table

from knn_logits.corpus.documents import Document
from knn_logits.corpus.reading import read_corpus

# gzip


@pytest.mark.parametrize("damage", ["cut", "checksum"])
def test_rows_before_the_damage_in_a_gzip_are_documents(tmp_path, damage):
    path = Path(write_lines(tmp_path / "a.jsonl.gz", lines_of(5000)))
    data = path.read_bytes()
    half = len(data) // 2
    damaged = {"cut": data[:half], "checksum": data[:-8] + b"\0\1\2\3" + data[-4:]}[damage]
    path.write_bytes(damaged)
    documents, skipped = read(str(path))
    assert len(documents) == 5000 if damage == "checksum" else 1000 < len(documents) < 5000
    assert [d.id for d in documents] == [str(n) for n in range(len(documents))]
    [(name, reason)] = skipped
    assert name == str(path)
    assert "damaged gzip" in reason
    assert f"{len(documents)} rows" in reason


def test_a_damaged_gzip_of_text_is_no_document(tmp_path):
    path = write(tmp_path / "a.txt.gz", gzip.compress(b"words " * 100)[:-10])
    # A browser may have unpacked it.
    other = write(tmp_path / "b.txt.gz", "not gzip at all")
    documents, ((name, reason),) = read(path, other)
    assert [document.id for document in documents] == ["b.txt.gz"]
    assert (name, reason[:12]) == (path, "damaged gzip")


# Parquet


def test_parquet_gives_the_same_as_json_lines(tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        {
            "text": ["one", "two", None],
            "id": ["x", None, "z"],
            "title": ["T", None, None],
            "n": pa.array([1, 2, 3], pa.int8()),
            "nested": [{"a": [1, None]}, None, None],
        },
    )
    documents, skipped = read(path)
    assert documents == [
        Document("one", "x", "T", metadata={"n": 1, "nested": {"a": [1, None]}}),
        Document("two", "a.parquet:2", metadata={"n": 2}),
    ]
    assert skipped == [(f"{path}, row 3", "empty")]


def test_metadata_of_parquet_are_values_that_json_has(tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        {
            "text": ["one"],
            "day": [datetime.date(2020, 2, 3)],
            "when": pa.array([1000], pa.timestamp("us")),
            "span": pa.array([5_000_000], pa.duration("us")),
            "price": [decimal.Decimal("1.50")],
            "blob": [b"\xff"],
        },
    )
    metadata = read(path)[0][0].metadata
    assert metadata == {
        "day": "2020-02-03",
        "when": "1970-01-01 00:00:00.001000",
        "span": "0:00:05",
        "price": "1.50",
    }
    json.dumps(metadata)


def test_parquet_is_not_loaded_whole(tmp_path):
    texts = [digits(n) * 100 for n in range(1000)]
    path = write_table(
        tmp_path / "a.parquet",
        {"text": texts},
        row_group_size=20,
        use_dictionary=False,
        compression="none",
    )
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in read_corpus([path]))
    assert most < Path(path).stat().st_size / 2
