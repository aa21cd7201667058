"""Datasets of the Hub, with a stand-in for the library `datasets`."""

import sys
import types

import pytest
from corpus_files import failure, read

from knn_logits.corpus.documents import Document
from knn_logits.corpus.reading import read_corpus
from knn_logits.errors import CorpusError, MissingDependencyError


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


@pytest.mark.parametrize("name", ["hf:", "hf::config", "hf: :x"])
def test_a_dataset_without_a_name_is_an_error(hub, name):
    with pytest.raises(CorpusError, match=r"is not a dataset name; use hf:DATASET:CONFIG:SPLIT"):
        read_corpus([name])


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        (
            {f"column{number}": "x" for number in range(12)},
            ('hf:x::trian, row 1: no field "text" among column0, ', "column2, ...;"),
        ),
        ({"text": ["a"]}, ('hf:x::trian, row 1: "text" is a list, not a string',)),
        (
            ValueError("Unknown split 'trian'.\nShould be one of ['train']."),
            ("hf:x::trian: ValueError: Unknown split 'trian'.", "hf:DATASET::SPLIT"),
        ),
    ],
)
def test_a_dataset_without_texts_is_an_error(hub, row, messages):
    def load_dataset(*args, **options):
        if isinstance(row, Exception):
            raise row
        return iter([row])

    hub.module.load_dataset = load_dataset
    message = failure("hf:x::trian")
    assert all(part in message for part in messages)


@pytest.mark.parametrize("module", [None, types.ModuleType("datasets")])
def test_without_the_library_the_error_names_the_extra(monkeypatch, module):
    # None makes the import fail; an empty module is what a folder named datasets gives.
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(MissingDependencyError) as caught:
        read_corpus(["hf:org/name"])
    assert "hf:org/name" in str(caught.value)
    assert 'pip install "knn-logits[datasets]"' in str(caught.value)
