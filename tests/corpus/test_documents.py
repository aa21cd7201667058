"""Values that are accepted or refused where documents are expected."""

import pathlib

import pytest

from knn_logits.corpus.documents import Document, as_documents
from knn_logits.errors import CorpusError


def ids_of(documents, before=()):
    return [document.id for document in as_documents(documents, before)]


def test_a_number_that_is_taken_is_given_another_sign():
    assert ids_of(["a", "b"], before=["2", "7"]) == ["2#2", "3"]
    assert ids_of([Document("a", "1"), "b"]) == ["1", "1#2"]


@pytest.mark.parametrize(
    "value",
    ["text", b"text", Document("text", "id"), pathlib.Path("folder"), {"text": "a"}, None, 5],
)
def test_a_single_value_is_refused_at_once(value):
    with pytest.raises(CorpusError, match="documents must be a list"):
        as_documents(value)


@pytest.mark.parametrize("row", [None, b"text", {"text": "a"}, 5, ["a"]])
def test_a_row_that_is_no_document_is_named_by_its_number(row):
    with pytest.raises(CorpusError, match="document number 2 is"):
        list(as_documents(["good", row]))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"id": 5}, "id must be a string, not a int"),
        ({"id": None}, "id must be a string, not a NoneType"),
        ({"id": "\ud800"}, "id contains a lone surrogate"),
        ({"text": None}, "text of the document 'd' must be a string, not a NoneType"),
        ({"text": b"bytes"}, "text of the document 'd' must be a string, not a bytes"),
        ({"text": "half \udc00 a character"}, "text of the document 'd' contains a lone surrogate"),
        ({"title": 7}, "title of the document 'd' must be a string, not a int"),
        ({"title": "\ud800"}, "title of the document 'd' contains a lone surrogate"),
        ({"uri": ["a"]}, "uri of the document 'd' must be a string, not a list"),
        ({"source": "\ud800"}, "source of the document 'd' contains a lone surrogate"),
        ({"metadata": "a"}, "metadata of the document 'd' must be a mapping, not a str"),
    ],
)
def test_a_document_of_other_values_is_refused(fields, named):
    with pytest.raises(CorpusError, match=named):
        Document(**{"text": "text", "id": "d", **fields})


def test_a_text_that_is_a_file_or_a_folder_is_refused(tmp_path):
    (tmp_path / "notes.unknown").write_text("Text.")
    for path in (tmp_path / "notes.unknown", tmp_path):
        with pytest.raises(CorpusError, match="is a file or a folder, but texts are expected"):
            list(as_documents([str(path)]))
