"""Reading pairs: fields of rows in JSON, parquet and on the Hub."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from knn_logits.corpus import reading
from knn_logits.corpus.reading import read_corpus
from knn_logits.errors import CorpusError

FIELDS = ("translation.en", "translation.de")


def read(*names, **options):
    return list(read_corpus([str(name) for name in names], pairs=True, **options))


def pairs_of(documents):
    return [(one.source, one.text) for one in documents]


ROWS = [
    {"id": "1", "translation": {"en": "a", "de": "b"}},
    {"id": "2", "translation": {"en": "c", "de": "d"}, "more": 1},
]


def test_fields_of_objects(tmp_path):
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "r.json").write_text(json.dumps(ROWS, indent=1))
    (tmp_path / "one.json").write_text(json.dumps(ROWS[0], indent=1))
    table = pa.Table.from_pylist([{"more": None, **row} for row in ROWS])
    pq.write_table(table, tmp_path / "r.parquet")
    for name in ("r.jsonl", "r.json", "r.parquet"):
        found = read(tmp_path / name, pair_fields=FIELDS)
        assert pairs_of(found) == [("a", "b"), ("c", "d")]
        assert [dict(one.metadata) for one in found] == [{}, {"more": 1}]
    assert pairs_of(read(tmp_path / "one.json", pair_fields=FIELDS)) == [("a", "b")]


def test_objects_of_parquet_that_lack_a_field(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "r.parquet")
    for fields in (("translation.fr", "translation.de"), ("id.x", "translation.de"), ("x.y", "id")):
        with pytest.raises(CorpusError, match=f'no field "{fields[0]}"'):
            read(tmp_path / "r.parquet", pair_fields=fields)
    with pytest.raises(CorpusError, match='"translation" is a dict'):
        read(tmp_path / "r.parquet", pair_fields=("id", "translation"))


def test_datasets_of_the_hub(monkeypatch):
    rows = [*ROWS, {"id": "3", "translation": None}]
    monkeypatch.setattr(reading, "_dataset_loader", lambda name: lambda: rows)
    found = read("hf:org/pairs", pair_fields=FIELDS)
    assert pairs_of(found) == [("a", "b"), ("c", "d")]
    with pytest.raises(CorpusError, match='no field "source"'):
        read("hf:org/pairs")
