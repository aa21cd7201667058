import contextlib
import datetime
import decimal
import gzip
import hashlib
import json
import os
import sys
import tracemalloc
import types
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knn_logits.build.corpus import Document, corpus_bytes, read_corpus
from knn_logits.errors import CorpusError, MissingDependencyError


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def write_lines(path, rows):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return write(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def write_table(path, columns, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def read(*paths, **options):
    """Read a corpus that may hold anything; return its documents and what was passed over."""
    skipped = []
    documents = read_corpus(
        paths, on_skip=lambda name, reason: skipped.append((name, reason)), **options
    )
    return list(documents), skipped


def failure(*paths, **options):
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(paths, **options))
    message = str(caught.value)
    assert "\n" not in message
    return message


GOOD = [{"text": "good"}]


# Text files


def test_a_text_file_is_one_document(tmp_path):
    path = write(tmp_path / "deep" / "note.md", "one\ntwo\n")
    assert read(path) == ([Document(text="one\ntwo\n", id="note.md", uri="note.md")], [])


def test_line_ends_are_normalised_and_the_byte_order_mark_dropped(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\rthree\n\r\n")
    assert read(path)[0][0].text == "one\ntwo\nthree\n\n"


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_a_character_across_two_chunks_is_read_whole(tmp_path, offset, monkeypatch):
    monkeypatch.setattr("knn_logits.build.corpus_formats._CHUNK", 4)
    text = "x" * offset + "𝄞é\r\n€"
    assert read(write(tmp_path / "a", text))[0][0].text == text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"caf\xe9 noir", "not UTF-8"),
        (b"cut off \xe2\x82", "not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
        (b"text\0more", "NUL"),
        ("text".encode("utf-16"), "NUL"),
        (b"", "empty"),
        (b" \r\n\t\n", "empty"),
        ("\ufeff\u2003\n".encode(), "empty"),
    ],
)
def test_an_unreadable_text_file_is_skipped_or_with_strict_an_error(tmp_path, data, reason):
    bad = write(tmp_path / "bad.txt", data)
    good = write(tmp_path / "good.txt", "good")
    documents, skipped = read(bad, good)
    assert [document.id for document in documents] == ["good.txt"]
    assert [name for name, _ in skipped] == [bad]
    assert reason in skipped[0][1]
    message = failure(bad, good, strict=True)
    assert bad in message
    assert reason in message
    assert "without strict" in message


def test_a_binary_file_is_left_at_its_first_bad_byte(tmp_path):
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(1 << 36)  # sparse: reading it whole would take far more than this test does
    good = write(tmp_path / "good.txt", "good")
    assert read(str(path), good)[1] == [(str(path), "binary: it holds NUL bytes")]


@pytest.mark.parametrize("name", ["a.txt", "b.jsonl"])
def test_a_file_without_permission_is_skipped(tmp_path, monkeypatch, name):
    bad = write(tmp_path / name, json.dumps(GOOD[0]))
    good = write(tmp_path / "good.txt", "good")
    plain = Path.open

    def refusing(self, *args, **options):
        if self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        return plain(self, *args, **options)

    monkeypatch.setattr(Path, "open", refusing)
    assert read(bad, good)[1] == [(bad, "permission denied")]
    assert "permission denied" in failure(bad, strict=True)


# JSON lines


def test_json_lines_give_id_title_uri_and_metadata(tmp_path):
    row = {"text": "t", "id": "x", "title": "T", "uri": "u", "source": "wiki", "n": [1, {"a": 2.5}]}
    path = write_lines(tmp_path / "a.jsonl", [row, {"text": " kept\r\nas is "}])
    assert read(path)[0] == [
        Document("t", "x", "T", "u", {"source": "wiki", "n": [1, {"a": 2.5}]}),
        Document(" kept\r\nas is ", "a.jsonl:2"),
    ]


@pytest.mark.parametrize("name", ["A.JSONL", "a.ndjson", "a.jsonl.gz", "a.NDJSON.GZ", "a.json"])
def test_json_lines_are_known_by_suffix(tmp_path, name):
    rows = "\n".join(json.dumps({"text": text}) for text in ("one", "two")).encode()
    path = write(tmp_path / name, gzip.compress(rows) if name.lower().endswith("gz") else rows)
    assert [(d.text, d.id) for d in read(path)[0]] == [("one", f"{name}:1"), ("two", f"{name}:2")]


def test_blank_lines_windows_line_ends_and_a_byte_order_mark(tmp_path):
    path = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "a"}\r\n\r\n  \n{"text": "b"}')
    assert [(d.text, d.id) for d in read(path)[0]] == [("a", "a.jsonl:1"), ("b", "a.jsonl:4")]


def test_numbers_become_labels_and_nothing_stays_nothing(tmp_path):
    rows = [
        {"text": "a", "id": 7, "title": 1984, "uri": None},
        {"text": "b", "id": "", "title": ""},
    ]
    first, second = read(write_lines(tmp_path / "a.jsonl", rows))[0]
    assert (first.id, first.title, first.uri) == ("7", "1984", None)
    assert (second.id, second.title) == ("a.jsonl:2", None)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "cut', "not valid JSON"),
        ("plain words", "not valid JSON"),
        ('{"text": "a"} {"text": "b"}', "not valid JSON (Extra data, column 15)"),
        ('["text"]', "a list, not a JSON object"),
        ('"text"', "a string, not a JSON object"),
        ("null", "null, not a JSON object"),
        ("3", "a number, not a JSON object"),
        ('{"Text": "a"}', 'no "text"'),
        ('{"text": null}', '"text" is null, not a string'),
        ('{"text": true}', '"text" is a boolean, not a string'),
        ('{"text": 1}', '"text" is a number, not a string'),
        ('{"text": ["a"]}', '"text" is a list, not a string'),
        ('{"text": {"a": 1}}', '"text" is an object, not a string'),
        ('{"text": "a", "id": ["x"]}', '"id" is a list, not a string'),
        ('{"text": "a", "title": false}', '"title" is a boolean, not a string'),
        ('{"text": "a", "m": ' + "[" * 200 + "]" * 200 + "}", "nested"),
        ('{"text": "a", "m": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested"),
        ('{"a":' * 200_000, "nested"),
    ],
)
def test_a_malformed_line_is_an_error_that_names_file_and_line(tmp_path, line, reason, strict):
    path = write(tmp_path / "a.jsonl", '{"text": "good"}\n\n' + line + "\n")
    documents = read_corpus([path], strict=strict)
    assert next(documents).text == "good"
    with pytest.raises(CorpusError) as caught:
        next(documents)
    message = str(caught.value)
    assert f"{path}, line 3: " in message
    assert reason in message
    assert "correct or remove" in message
    assert "\n" not in message


@pytest.mark.skipif(not hasattr(sys, "get_int_max_str_digits"), reason="Python without the limit")
def test_an_integer_too_long_for_python_is_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a", "n": ' + "1" * 5000 + "}")
    assert f"{path}, line 1: not valid JSON" in failure(path)


def test_a_long_integer_and_moderate_nesting_are_metadata(tmp_path):
    nested = json.loads("[" * 60 + "]" * 60)
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a", "n": 10**4000, "deep": nested}])
    assert read(path)[0][0].metadata == {"n": 10**4000, "deep": nested}


@pytest.mark.parametrize(
    "line",
    [
        rb'{"text": "\ud800"}',
        rb'{"text": "ok \uDC00 no"}',
        rb'{"text": "a", "title": "\udfff"}',
        rb'{"text": "a", "m": {"k": ["\ud800"]}}',
        rb'{"text": "a", "\ud800": 1}',
        b'{"text": "caf\xe9"}',
        b'{"text": " \\n "}',
    ],
)
def test_an_unreadable_line_is_skipped_or_with_strict_an_error(tmp_path, line):
    path = write(tmp_path / "a.jsonl", line + b'\n{"text": "good"}\n')
    documents, skipped = read(path)
    assert [document.id for document in documents] == ["a.jsonl:2"]
    assert [name for name, _ in skipped] == [f"{path}, line 1"]
    assert f"{path}, line 1: " in failure(path, strict=True)


def test_a_surrogate_pair_is_a_character(tmp_path):
    path = write(tmp_path / "a.jsonl", rb'{"text": "\ud834\udd1e"}')
    assert read(path, strict=True)[0][0].text == "𝄞"


TEXTS = st.text(st.characters(exclude_categories=("Cs",))).filter(str.strip)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXTS, min_size=1),
    titles=st.lists(TEXTS, min_size=1),
    escaped=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    suffix=st.sampled_from([".jsonl", ".jsonl.gz"]),
)
def test_json_lines_return_any_text_as_it_is(tmp_path, texts, titles, escaped, end, suffix):
    rows = [
        {"text": text, "title": titles[index % len(titles)], "id": str(index), "more": [text]}
        for index, text in enumerate(texts)
    ]
    data = "".join(json.dumps(row, ensure_ascii=escaped) + end for row in rows).encode()
    path = write(tmp_path / f"a{suffix}", gzip.compress(data) if suffix[-1] == "z" else data)
    assert read(path, strict=True)[0] == [
        Document(row["text"], row["id"], row["title"], metadata={"more": row["more"]})
        for row in rows
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(), name=st.sampled_from(["a", "a.jsonl", "a.json", "a.gz", "a.parquet"]))
def test_arbitrary_bytes_are_read_skipped_or_refused(tmp_path, data, name):
    path = write(tmp_path / name, data)
    with contextlib.suppress(CorpusError):
        assert read(path)[0]


# .json


def test_a_json_file_of_one_object_or_a_list_is_rows(tmp_path):
    one = write(tmp_path / "one.json", json.dumps({"text": "a", "n": 1}, indent=2))
    many = write(tmp_path / "many.json", json.dumps([{"text": "b"}, {"text": "c", "id": "C"}]))
    assert read(one, many)[0] == [
        Document("a", "one.json", metadata={"n": 1}),
        Document("b", "many.json:1"),
        Document("c", "C"),
    ]


@pytest.mark.parametrize(
    "text", ['{"name": "x"}', '[{"text": "a"}, 3]', "[]", "{broken", "[" * 100_000, '{"a":\n1}']
)
def test_any_other_json_file_is_text(tmp_path, text):
    path = write(tmp_path / "a.json", text)
    assert read(path)[0] == [Document(text, "a.json", uri="a.json")]


def test_json_lines_in_a_json_file_are_held_to_it(tmp_path):
    path = write(tmp_path / "a.json", '{"text": "a"}\n{"no": "text"}\n')
    assert f"{path}, line 2" in failure(path)


# gzip


def test_gzip_is_known_by_suffix_and_by_its_first_bytes(tmp_path):
    named = write(tmp_path / "a.txt.gz", gzip.compress(b"one\r\n") + gzip.compress(b"two"))
    bare = write(tmp_path / "b.jsonl", gzip.compress(b'{"text": "three"}'))
    assert [(d.id, d.text) for d in read(named, bare)[0]] == [
        ("a.txt.gz", "one\ntwo"),
        ("b.jsonl:1", "three"),
    ]


def digits(n):
    # They compress badly, so that damage in the middle of a file leaves rows before it.
    return hashlib.sha512(str(n).encode()).hexdigest()


def lines_of(count):
    return [{"text": f"line {n} {digits(n)}", "id": str(n)} for n in range(count)]


@pytest.mark.parametrize("damage", ["cut", "zeros", "checksum"])
def test_rows_before_the_damage_in_a_gzip_are_documents(tmp_path, damage):
    path = Path(write_lines(tmp_path / "a.jsonl.gz", lines_of(5000)))
    data = path.read_bytes()
    half = len(data) // 2
    damaged = {
        "cut": data[:half],
        "zeros": data[:half] + bytes(1000) + data[half + 1000 :],
        "checksum": data[:-8] + b"\0\1\2\3" + data[-4:],
    }[damage]
    path.write_bytes(damaged)
    documents, skipped = read(str(path))
    assert len(documents) == 5000 if damage == "checksum" else 1000 < len(documents) < 5000
    # What follows zeros may inflate to something that looks like rows, so only the first are sure.
    assert [d.id for d in documents[:1000]] == [str(n) for n in range(1000)]
    [(name, reason)] = skipped
    assert name == str(path)
    assert "damaged gzip" in reason
    assert f"{len(documents)} rows" in reason
    message = failure(str(path), strict=True)
    assert str(path) in message
    assert "damaged gzip" in message


def test_a_row_broken_by_damage_is_not_called_bad_json(tmp_path):
    # The same bytes with a broken row, stored without compression under the checksum of good ones.
    data = b'{"text": "a"}\n{"text": "b"}\n'
    zipped = gzip.compress(data, compresslevel=0)
    assert data in zipped
    path = write(tmp_path / "a.jsonl.gz", zipped.replace(b'"b"}', b'"b"]'))
    documents, [(name, reason)] = read(path)
    assert [document.text for document in documents] == ["a"]
    assert name == path
    assert "damaged gzip" in reason


def test_a_bad_row_in_a_sound_gzip_is_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(b'{"text": "a"}\n{"text": "b"]\n'))
    assert f"{path}, line 2: not valid JSON" in failure(path)


def test_a_damaged_gzip_of_text_is_no_document(tmp_path):
    path = write(tmp_path / "a.txt.gz", gzip.compress(b"words " * 100)[:-10])
    other = write(tmp_path / "b.gz", "not gzip at all")
    good = write(tmp_path / "good.txt", "good")
    documents, skipped = read(path, other, good)
    assert [document.id for document in documents] == ["good.txt"]
    assert [(name, reason[:12]) for name, reason in skipped] == [
        (path, "damaged gzip"),
        (other, "damaged gzip"),
    ]


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
            "when": pa.array([1], pa.timestamp("ns")),
            "far": pa.array([2**50], pa.timestamp("s")),
            "clock": pa.array([1], pa.time64("ns")),
            "span": pa.array([5_000_000_001], pa.duration("ns")),
            "price": [decimal.Decimal("1.50")],
            "blob": [b"\xff"],
        },
    )
    metadata = read(path)[0][0].metadata
    assert metadata == {
        "day": "2020-02-03",
        "when": "1970-01-01T00:00:00",
        "clock": "00:00:00",
        "span": "0:00:05",
        "price": "1.50",
    }
    json.dumps(metadata)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_string_column_is_text(tmp_path, kind):
    path = write_table(tmp_path / "a.parquet", {"text": pa.array(["a", "b", "a"], kind)})
    assert [document.text for document in read(path)[0]] == ["a", "b", "a"]


def test_parquet_without_the_column_is_an_error(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"content": ["a"], "body": ["b"]})
    message = failure(path)
    assert path in message
    assert 'no column "text" among content, body' in message
    assert 'rename the column that holds it to "text"' in message
    assert 'no column "source"' in failure(path, pairs=True)


def test_parquet_whose_text_is_no_string_is_an_error(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"text": [1, 2]})
    assert f'{path}, row 1: "text" is a number, not a string' in failure(path)


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


def test_a_parquet_value_that_is_not_utf8_costs_its_row(tmp_path):
    texts = pa.array([b"good", b"caf\xe9", b"fine"]).view(pa.string())
    path = write_table(tmp_path / "a.parquet", {"text": texts})
    documents, skipped = read(path)
    assert [document.id for document in documents] == ["a.parquet:1", "a.parquet:3"]
    assert skipped == [(f"{path}, row 2", "not UTF-8 text")]


def test_rows_before_the_damage_in_parquet_are_documents(tmp_path):
    texts = [f"{n} {digits(n)}" for n in range(1000)]
    path = Path(
        write_table(
            tmp_path / "a.parquet", {"text": texts}, row_group_size=100, write_page_checksum=True
        )
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    documents, [(name, reason)] = read(str(path))
    assert [document.text for document in documents] == texts[: len(documents)]
    assert 100 <= len(documents) < 900
    assert name == str(path)
    assert "damaged parquet" in reason
    assert f"{len(documents)} rows" in reason
    assert "damaged parquet" in failure(str(path), strict=True)


def test_a_file_that_is_no_parquet_is_skipped(tmp_path):
    path = write(tmp_path / "a.parquet", "not parquet")
    documents, skipped = read(path, write(tmp_path / "good.txt", "good"))
    assert [document.id for document in documents] == ["good.txt"]
    assert skipped[0][0] == path
    assert "damaged parquet" in skipped[0][1]


# Folders


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path):
    for name in ["b.txt", "a/z.md", "a/c/x.py", "B.rst", "a.txt", "a-b/q", "a/10", "a/9"]:
        write(tmp_path / name, name)
    write_lines(tmp_path / "a" / "rows.jsonl", [{"text": "row"}])
    for hidden in [".hidden.txt", ".git/config", "a/.cache/x.txt"]:
        write(tmp_path / hidden, "hidden")
    documents, skipped = read(str(tmp_path))
    assert [document.id for document in documents] == [
        "B.rst",
        *["a/10", "a/9", "a/c/x.py", "a/rows.jsonl:1", "a/z.md"],
        "a-b/q",
        "a.txt",
        "b.txt",
    ]
    assert [document.uri for document in documents if document.text != "row"] == [
        document.id for document in documents if document.text != "row"
    ]
    assert skipped == []
    assert read(str(tmp_path) + "/")[0] == documents
    assert read(tmp_path)[0] == documents


def test_a_hidden_file_that_is_named_is_read(tmp_path):
    assert read(write(tmp_path / ".notes", "text"))[0][0].id == ".notes"


def test_links_to_folders_are_followed_once(tmp_path):
    write(tmp_path / "corpus" / "deep" / "a.txt", "a")
    write(tmp_path / "elsewhere" / "b.txt", "b")
    (tmp_path / "corpus" / "deep" / "loop").symlink_to(tmp_path / "corpus")
    (tmp_path / "corpus" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "link2").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "file.txt").symlink_to(tmp_path / "elsewhere" / "b.txt")
    documents, skipped = read(str(tmp_path / "corpus"))
    assert [document.id for document in documents] == ["deep/a.txt", "file.txt", "link/b.txt"]
    assert skipped == []


def test_a_broken_link_and_a_pipe_in_a_folder_are_skipped(tmp_path):
    write(tmp_path / "good.txt", "good")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    documents, skipped = read(str(tmp_path))
    assert [document.id for document in documents] == ["good.txt"]
    assert skipped == [
        (str(tmp_path / "broken"), "no such file or directory"),
        (str(tmp_path / "pipe"), "not a regular file"),
    ]


def test_a_folder_without_permission_is_skipped(tmp_path, monkeypatch):
    write(tmp_path / "closed" / "a.txt", "a")
    write(tmp_path / "open" / "b.txt", "b")
    plain = Path.iterdir

    def refusing(self):
        if self.name == "closed":
            raise PermissionError(13, "Permission denied", str(self))
        return plain(self)

    monkeypatch.setattr(Path, "iterdir", refusing)
    documents, skipped = read(str(tmp_path))
    assert [document.id for document in documents] == ["open/b.txt"]
    assert skipped == [(str(tmp_path / "closed"), "permission denied")]


@pytest.mark.skipif(sys.platform != "linux", reason="file names of other systems are Unicode")
def test_a_file_name_that_is_no_text_gives_an_id_that_is(tmp_path):
    for name in [b"caf\xe9.txt", b"caf\xe8.txt", b"new\nline.txt"]:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("text")
    assert [document.id for document in read(str(tmp_path))[0]] == [
        "caf\ufffd.txt",
        "caf\ufffd.txt#2",
        "new\ufffdline.txt",
    ]
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/b\xe9\n.jsonl")
    Path(bad).write_text("broken")
    assert "b\ufffd\ufffd.jsonl, line 1" in failure(bad)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_a_pipe_that_is_named_is_read(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, gzip.compress(b"piped"))
    os.close(writing)
    try:
        path = f"/dev/fd/{reading}"
        assert corpus_bytes([path]) is None
        assert read(path)[0][0].text == "piped"
    finally:
        os.close(reading)


# Ids


def test_equal_ids_are_numbered_in_the_order_of_reading(tmp_path):
    ids = ["a", "a", "a#2", "b", "a", "a#2", "a#3"]
    path = write_lines(tmp_path / "a.jsonl", [{"text": "t", "id": name} for name in ids])
    numbered = [document.id for document in read(path)[0]]
    assert numbered == ["a", "a#2", "a#2#2", "b", "a#3", "a#2#3", "a#3#2"]
    assert [document.id for document in read(path)[0]] == numbered


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.sampled_from(["a", "a#2", "a#3", "a#2#2", "b", "a.jsonl:1", ""])))
def test_ids_are_unique(tmp_path, ids):
    rows = [{"text": "t", "id": name} for name in [*ids, "last"]]
    documents, _ = read(write_lines(tmp_path / "a.jsonl", rows))
    assert len({document.id for document in documents}) == len(rows)


def test_a_skipped_document_takes_no_id(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"text": " ", "id": "a"}, {"text": "t", "id": "a"}])
    assert [document.id for document in read(path)[0]] == ["a"]


def test_a_file_given_twice_is_read_twice(tmp_path):
    path = write(tmp_path / "a.txt", "a")
    assert [document.id for document in read(path, path, str(tmp_path))[0]] == [
        "a.txt",
        "a.txt#2",
        "a.txt#3",
    ]


# Pairs


def test_pairs_have_a_source_and_their_target_as_text(tmp_path):
    row = {"source": "Hallo", "target": "hello", "id": "1", "lang": "de"}
    lines = write_lines(tmp_path / "a.jsonl.gz", [row, {"source": " ", "target": "x"}])
    table = write_table(tmp_path / "b.parquet", {"source": ["Tag"], "target": ["day"]})
    one = write(tmp_path / "c.json", json.dumps({"source": "Nacht", "target": "night"}, indent=1))
    documents, skipped = read(lines, table, one, pairs=True)
    assert documents == [
        Document("hello", "1", metadata={"lang": "de"}, source="Hallo"),
        Document("day", "b.parquet:1", source="Tag"),
        Document("night", "c.json", source="Nacht"),
    ]
    assert skipped == [(f"{lines}, line 2", "empty")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "a"}, 'no "source"'),
        ({"source": "a"}, 'no "target"'),
        ({"source": "a", "target": 3}, '"target" is a number'),
    ],
)
def test_a_row_that_is_no_pair_is_an_error(tmp_path, row, reason):
    path = write_lines(tmp_path / "a.jsonl", [row])
    message = failure(path, pairs=True)
    assert f"{path}, line 1: " in message
    assert reason in message


@pytest.mark.parametrize("name", ["a.txt", "a.md.gz", "README"])
def test_plain_text_is_no_pair(tmp_path, name):
    path = write(tmp_path / name, "words")
    with pytest.raises(CorpusError) as caught:
        read_corpus([path], pairs=True)  # at once, not after hours of other files
    message = str(caught.value)
    assert path in message
    assert "plain text has no source and target" in message
    assert ".jsonl" in message


def test_plain_text_beside_pairs_is_skipped(tmp_path):
    write_lines(tmp_path / "a.jsonl", [{"source": "a", "target": "b"}])
    readme = write(tmp_path / "README.md", "words")
    documents, skipped = read(str(tmp_path), pairs=True)
    assert [document.id for document in documents] == ["a.jsonl:1"]
    assert skipped == [(readme, "plain text has no source and target")]


# The corpus as a whole


def test_nothing_given():
    with pytest.raises(CorpusError, match=r"no corpus is given; name text files.*hf:DATASET"):
        read_corpus([])


@pytest.mark.parametrize("name", ["nowhere.txt", "org/name", ""])
def test_a_path_that_does_not_exist_is_an_error_at_once(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    good = write(tmp_path / "good.txt", "good")
    for function in (read_corpus, corpus_bytes):
        with pytest.raises(CorpusError, match=r"does not exist; check the path") as caught:
            function([good, name])
        assert repr(name) in str(caught.value)
        assert "hf:" in str(caught.value)


@pytest.mark.parametrize("name", ["words " * 1000, "a\0b", "good.txt/below"])
def test_what_cannot_be_a_path_is_an_error(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good.txt", "good")
    message = failure(name)
    assert "\0" not in message
    assert len(message) < 500


def test_a_single_path_is_taken_as_one(tmp_path):
    path = write(tmp_path / "a.txt", "a")
    assert [document.id for document in read_corpus(path)] == ["a.txt"]


def test_an_empty_folder_is_an_error(tmp_path):
    write(tmp_path / ".hidden", "text")
    message = failure(str(tmp_path))
    assert str(tmp_path) in message
    assert "no readable document" in message
    assert "hidden" in message


def test_a_corpus_without_a_readable_document_is_an_error(tmp_path):
    binary = write(tmp_path / "a.bin", b"\0")
    write(tmp_path / "b.txt", " ")
    skipped = []
    message = failure(str(tmp_path), on_skip=lambda *skip: skipped.append(skip))
    assert f"no readable document: 2 skipped, the first {binary}: binary" in message
    assert "name text files" in message
    assert len(skipped) == 2


def test_an_empty_file_of_rows_is_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl", "\n\n")
    assert "no readable document" in failure(path)


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    def peak(count):
        path = write_lines(tmp_path / "a.jsonl.gz", [{"text": "words " * 2000}] * count)
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_corpus([path])) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(500) < 2 * peak(50)  # 6 MB of text against 0.6 MB


def test_documents_come_before_the_rest_is_read(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\nbroken')
    assert next(read_corpus([path])).text == "a"


# Progress


def test_the_bytes_read_grow_to_the_size_of_the_corpus(tmp_path):
    write_lines(tmp_path / "a.jsonl.gz", lines_of(5000))
    write_lines(tmp_path / "b.jsonl", lines_of(50))
    write_table(tmp_path / "c.parquet", {"text": ["words"] * 200})
    write(tmp_path / "d.bin", b"\0" * 1000)
    write(tmp_path / "e.txt", "text")
    total = corpus_bytes([str(tmp_path)])
    assert total == sum(path.stat().st_size for path in tmp_path.iterdir())
    seen = []
    list(read_corpus([str(tmp_path)], on_bytes=seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == total
    assert len(set(seen)) > 50


def test_the_size_of_the_same_paths_adds_up(tmp_path):
    path = write(tmp_path / "a.txt", "12345")
    assert corpus_bytes([path, path]) == 10
    assert corpus_bytes([path, "hf:org/name"]) is None


# Datasets of the Hub


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the library `datasets`; returns the calls made and the rows it gives."""
    calls, rows = [], []

    def load_dataset(*args, **options):
        calls.append((args, options))
        return iter(list(rows))

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return types.SimpleNamespace(calls=calls, rows=rows, module=module)


@pytest.mark.parametrize(
    ("name", "args", "split"),
    [
        ("hf:org/name", ("org/name", None), "train"),
        ("hf:org/name:config", ("org/name", "config"), "train"),
        ("hf:org/name:config:test", ("org/name", "config"), "test"),
        ("hf:org/name::validation", ("org/name", None), "validation"),
        ("hf:name:", ("name", None), "train"),
        ("hf:name::", ("name", None), "train"),
    ],
)
def test_a_dataset_of_the_hub_is_streamed(hub, name, args, split):
    hub.rows += [{"text": "a", "id": 3, "n": 1}, {"text": None}, {"text": "b", "x": b"\0"}]
    documents, skipped = read(name)
    assert documents == [Document("a", "3", metadata={"n": 1}), Document("b", f"{name}:3")]
    assert skipped == [(f"{name}, row 2", "empty")]
    assert hub.calls == [(args, {"split": split, "streaming": True})]


def test_a_dataset_of_pairs(hub):
    hub.rows.append({"source": "a", "target": "b"})
    assert read("hf:x", pairs=True)[0] == [Document("b", "hf:x:1", source="a")]


def test_files_and_datasets_together(hub, tmp_path):
    hub.rows.append({"text": "b"})
    path = write(tmp_path / "a.txt", "a")
    assert [document.text for document in read(path, "hf:x", path)[0]] == ["a", "b", "a"]


@pytest.mark.parametrize("name", ["hf:", "hf::config", "hf: :x"])
def test_a_dataset_without_a_name_is_an_error(hub, name):
    with pytest.raises(CorpusError, match=r"names no dataset; write hf:DATASET:CONFIG:SPLIT"):
        read_corpus([name])


def test_a_dataset_without_the_column_is_an_error(hub):
    hub.rows.append({f"column{number}": "x" for number in range(12)})
    message = failure("hf:org/name")
    assert 'hf:org/name: no column "text" among column0, ' in message
    assert "column9, ...;" in message


def test_a_dataset_whose_text_is_no_string_is_an_error(hub):
    hub.rows.append({"text": ["a"]})
    assert 'hf:x, row 1: "text" is a list, not a string' in failure("hf:x")


def test_a_dataset_that_does_not_load_is_an_error(hub):
    def load_dataset(*args, **options):
        raise ValueError("Unknown split 'trian'.\nShould be one of ['train'].")

    hub.module.load_dataset = load_dataset
    message = failure("hf:org/name::trian")
    assert "hf:org/name::trian: ValueError: Unknown split 'trian'." in message
    assert "hf:DATASET::SPLIT" in message


def test_a_dataset_that_breaks_off_is_an_error(hub):
    def rows():
        yield {"text": "a"}
        raise ConnectionError("server gone")

    hub.module.load_dataset = lambda *args, **options: rows()
    documents = read_corpus(["hf:x"])
    assert next(documents).text == "a"
    with pytest.raises(CorpusError, match=r"hf:x: ConnectionError: server gone; check the conn"):
        next(documents)


@pytest.mark.parametrize("module", [None, types.ModuleType("datasets")])
def test_without_the_library_the_error_names_the_extra(monkeypatch, module):
    # None makes the import fail; an empty module is what a folder named datasets gives.
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(MissingDependencyError) as caught:
        read_corpus(["hf:org/name"])
    assert "hf:org/name" in str(caught.value)
    assert 'pip install "knn-logits[datasets]"' in str(caught.value)


def test_the_library_is_not_imported_without_need(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert corpus_bytes(["hf:org/name"]) is None
    assert read(write(tmp_path / "a.txt", "a"))[0]
