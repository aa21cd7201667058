"""Reading pairs: two files side by side, and fields of rows in JSON, parquet and on the Hub."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knn_logits.corpus import hub as corpus_hub
from knn_logits.corpus.reading import corpus_bytes, read_corpus
from knn_logits.errors import CorpusError

LINES = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\0\xad\u200b\u2060\ufeff"), max_size=30
).filter(lambda line: line == line.strip("\ufeff"))
FIELDS = ("translation.en", "translation.de")


def read(*names, **options):
    return list(read_corpus([str(name) for name in names], pairs=True, **options))


def pairs_of(documents):
    return [(one.source, one.text) for one in documents]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(st.tuples(LINES, LINES), min_size=1, max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    zipped=st.tuples(st.booleans(), st.booleans()),
    mark=st.booleans(),
)
def test_line_n_is_the_pair_of_line_n(tmp_path, rows, end, last, zipped, mark):
    rows = [*rows, ("the end", "das Ende")]
    for side, name in enumerate(("s", "t")):
        text = end.join(row[side] for row in rows) + (end if last else "")
        data = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if zipped[side] else data)
    name = f"{tmp_path / 's'}::{tmp_path / 't'}"
    skipped, seen = [], []
    found = read(name, on_skip=lambda *one: skipped.append(one), on_bytes=seen.append)
    kept = [number for number, row in enumerate(rows) if all(one.strip() for one in row)]
    assert pairs_of(found) == [rows[number] for number in kept]
    assert [one.id for one in found] == [f"t:{number + 1}" for number in kept]
    assert len(skipped) == len(rows) - len(kept)
    assert seen == sorted(seen)
    assert seen[-1] == corpus_bytes([name])


def test_a_line_is_what_a_newline_ends(tmp_path):
    (tmp_path / "s").write_text("a\u2028b\x0cc\x85d\ne\n")
    (tmp_path / "t").write_text("1\n2\n")
    assert pairs_of(read(f"{tmp_path}/s::{tmp_path}/t")) == [
        ("a\u2028b\x0cc\x85d", "1"),
        ("e", "2"),
    ]


def test_two_files_with_other_corpora_keep_ids_apart(tmp_path):
    for name in ("a/s", "a/t", "b/s", "b/t"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name} one\n")
    (tmp_path / "r.jsonl").write_text('{"source": "x", "target": "y", "id": "t:1", "n": 3}\n')
    found = read(
        f"{tmp_path}/a/s::{tmp_path}/a/t", f"{tmp_path}/b/s::{tmp_path}/b/t", tmp_path / "r.jsonl"
    )
    assert [one.id for one in found] == ["t:1", "t:1#2", "t:1#3"]
    assert found[2].metadata == {"n": 3}


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        (b"a\nb\n", b"1\n", "t has only 1 lines"),
        (b"a\n", b"1\n2\n", "s has only 1 lines"),
        (b"", b"1\n", "s has only 0 lines"),
        (b"", b"", "no readable document"),
        (gzip.compress(b"a\nb\n" * 500, mtime=0)[:-9], b"1\n2\n" * 500, "cannot be read"),
    ],
)
def test_files_that_are_no_pair(tmp_path, source, target, says):
    (tmp_path / "s").write_bytes(source)
    (tmp_path / "t").write_bytes(target)
    with pytest.raises(CorpusError, match=says) as caught:
        read(f"{tmp_path}/s::{tmp_path}/t")
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_cost_their_line(tmp_path):
    (tmp_path / "s").write_bytes(b"a\n\xff\nc\n")
    (tmp_path / "t").write_bytes(b"1\n2\n3\n")
    skipped = []
    found = read(f"{tmp_path}/s::{tmp_path}/t", on_skip=lambda *one: skipped.append(one))
    assert pairs_of(found) == [("a", "1"), ("c", "3")]
    assert skipped == [(f"{tmp_path}/t, line 2", "not UTF-8 text")]


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


def test_what_else_an_object_holds_is_metadata(tmp_path):
    row = {"t": {"en": "a", "de": "b", "fr": "c", "x": {"y": "deep"}}, "t.en": "first"}
    (tmp_path / "r.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = read(tmp_path / "r.jsonl", pair_fields=("t.en", "t.x.y"))
    assert (found.source, found.text) == ("first", "deep")
    assert found.metadata == {"t": {"en": "a", "de": "b", "fr": "c", "x": {}}}


def test_objects_of_parquet_that_lack_a_field(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "r.parquet")
    for fields in (("translation.fr", "translation.de"), ("id.x", "translation.de"), ("x.y", "id")):
        with pytest.raises(CorpusError, match=f'no field "{fields[0]}"'):
            read(tmp_path / "r.parquet", pair_fields=fields)
    with pytest.raises(CorpusError, match='"translation" is a dict'):
        read(tmp_path / "r.parquet", pair_fields=("id", "translation"))


def test_nulls_are_empty(tmp_path):
    rows = [{"translation": None}, {"translation": {"en": None, "de": "x"}}, ROWS[0]]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    skipped = []
    found = read(
        tmp_path / "r.parquet", pair_fields=FIELDS, on_skip=lambda *one: skipped.append(one[1])
    )
    assert pairs_of(found) == [("a", "b")]
    assert skipped == ["empty", "empty"]


def test_datasets_of_the_hub(monkeypatch):
    class Datasets:
        @staticmethod
        def load_dataset(name, config, *, split, streaming):
            return [*ROWS, {"id": "3", "translation": None}]

    monkeypatch.setattr(corpus_hub, "load_datasets", lambda name: Datasets)
    monkeypatch.setattr("knn_logits.corpus.reading.load_datasets", lambda name: Datasets)
    found = read("hf:org/pairs", pair_fields=FIELDS)
    assert pairs_of(found) == [("a", "b"), ("c", "d")]
    with pytest.raises(CorpusError, match='no field "source"'):
        read("hf:org/pairs")
