"""Text, JSON lines and JSON: what is a document, what is skipped, and what is an error."""

import gzip
import json

import pytest
from corpus_files import failure, read, write, write_lines

from knn_logits.corpus.documents import Block, Document
from knn_logits.corpus.reading import read_corpus
from knn_logits.errors import CorpusError

# Text files


def test_a_text_file_is_one_document(tmp_path):
    path = write(tmp_path / "deep" / "note.md", b"\xef\xbb\xbfone\r\ntwo\rthree\n\r\n")
    text = "one\ntwo\nthree\n\n"
    blocks = (Block(0, "p", "line 1"),)
    assert read(path) == ([Document(text, "note.md", uri="note.md", blocks=blocks)], [])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"cut off \xe2\x82", "damaged: it is utf-8 text but for some bytes"),
        ("naïve ".encode() * 9 + b"caf\xe9 noir", "damaged: it is utf-8 text but for some bytes"),
        (b"text\0more", "NUL"),
        (b"", "empty"),
        (b" \r\n\t\n", "empty"),
        ("\ufeff\u2003\n".encode(), "empty"),
    ],
)
def test_an_unreadable_text_file_is_skipped(tmp_path, data, reason):
    bad = write(tmp_path / "bad.txt", data)
    good = write(tmp_path / "good.txt", "good")
    documents, skipped = read(bad, good)
    assert [document.id for document in documents] == ["good.txt"]
    assert [name for name, _ in skipped] == [bad]
    assert reason in skipped[0][1]


# JSON lines


def test_json_lines_give_id_title_uri_and_metadata(tmp_path):
    row = {"text": "t", "id": "x", "title": "T", "uri": "u", "source": "wiki", "n": [1, {"a": 2.5}]}
    path = write_lines(tmp_path / "a.jsonl", [row, {"text": " kept\r\nas is "}])
    assert read(path)[0] == [
        Document("t", "x", "T", "u", {"source": "wiki", "n": [1, {"a": 2.5}]}),
        Document(" kept\nas is ", "a.jsonl:2"),
    ]


@pytest.mark.parametrize("name", ["A.JSONL", "a.ndjson", "a.jsonl.gz", "a.NDJSON.GZ", "a.json"])
def test_json_lines_are_known_by_suffix(tmp_path, name):
    """Also with a byte order mark, blank lines and the line ends of Windows."""
    rows = b'\xef\xbb\xbf{"text": "a"}\r\n\r\n  \n{"text": "b"}'
    path = write(tmp_path / name, gzip.compress(rows) if name.lower().endswith("gz") else rows)
    assert [(d.text, d.id) for d in read(path)[0]] == [("a", f"{name}:1"), ("b", f"{name}:4")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "cut', "not valid JSON"),
        ('["text"]', "a list, not an object"),
        ('{"Text": "a"}', 'no field "text" among Text'),
        ('{"text": 7}', '"text" is a int, not a string'),
        ('{"text": "a", "m": ' + "[" * 200 + "]" * 200 + "}", "nested"),
        ('{"text": "a", "m": ' + "[" * 200_000 + "]" * 200_000 + "}", "not valid JSON"),
        # An integer that is too long for Python
        ('{"text": "a", "n": ' + "1" * 5000 + "}", "not valid JSON"),
    ],
)
def test_a_malformed_line_is_an_error_that_names_file_and_line(tmp_path, line, reason):
    path = write(tmp_path / "a.jsonl", '{"text": "good"}\n\n' + line + "\n")
    documents = read_corpus([path])
    assert next(documents).text == "good"
    with pytest.raises(CorpusError) as caught:
        next(documents)
    message = str(caught.value)
    assert f"{path}, line 3: " in message
    assert reason in message
    assert "fix or remove" in message
    assert "\n" not in message


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
        b'{"text": null}',
    ],
)
def test_an_unreadable_line_is_skipped(tmp_path, line):
    path = write(tmp_path / "a.jsonl", line + b'\n{"text": "good"}\n')
    documents, skipped = read(path)
    assert [document.id for document in documents] == ["a.jsonl:2"]
    assert [name for name, _ in skipped] == [f"{path}, line 1"]


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
    ((document,), _) = read(path)
    assert (document.text, document.id, document.uri) == (text, "a.json", "a.json")


def test_json_lines_in_a_json_file_are_held_to_it(tmp_path):
    path = write(tmp_path / "a.json", '{"text": "a"}\n{"no": "text"}\n')
    assert f"{path}, line 2" in failure(path)
