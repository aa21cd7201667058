"""A document left out: the answer as if it had never been added, and no file is changed."""

import shutil

import pytest
from conftest import TEXTS

import knn_logits
from knn_logits import KNNLogitsProcessor, explain
from knn_logits.errors import ConfigError

LEFT_OUT = ("1", "5")
EVERY = {"k": 400, "lmbda": 0.5, "temperature": 1000.0}


@pytest.fixture(params=["exact", "IVF4,Flat"])
def both(request, build, tmp_path):
    """A datastore, and a copy that two documents were removed from."""
    index = knn_logits.IndexConfig(request.param, nprobe=None if request.param == "exact" else 4)
    store = build(TEXTS, tmp_path / "whole", k=16, lmbda=0.6, temperature=3.0, index=index)
    shutil.copytree(store.folder, tmp_path / "less")
    less = knn_logits.remove_documents(tmp_path / "less", list(LEFT_OUT))
    return store, less


@pytest.mark.parametrize("retomaton", [False, True])
def test_a_text_is_explained_as_if_the_documents_had_been_removed(explain, both, retomaton):
    store, less = both
    settings = {"retomaton": retomaton, "k": 16, "lmbda": 0.6, "temperature": 3.0}
    found = explain(store, TEXTS[1], exclude=LEFT_OUT, **settings)[0]
    wanted = explain(less, TEXTS[1], **settings)[0]
    for one, other in zip(found.tokens, wanted.tokens, strict=True):
        assert one.p == pytest.approx(other.p, abs=1e-6)
        documents = {document.document for document in one.documents}
        assert documents == {document.document for document in other.documents}
        assert not documents & set(LEFT_OUT)
    assert explain(store, TEXTS[1], **settings)[0] != found


def test_a_document_that_is_not_there_is_named(model, tokenizer, store):
    with pytest.raises(
        ConfigError,
        match="none of the datastores has a document with the id, title or uri 'chapter 9'",
    ):
        KNNLogitsProcessor(model, store, exclude=["chapter 9"])
    with pytest.raises(ConfigError, match="exclude must be a list of document ids"):
        explain(model, tokenizer, store, TEXTS[0], exclude=3)


@pytest.mark.parametrize("name", ["d1", "On winches", "https://e.org/1"])
def test_a_document_is_named_by_its_id_title_or_uri(build, explain, tmp_path, name):
    documents = [
        knn_logits.Document(text, f"d{n}", title="On winches" if n == 1 else None,
                            uri=f"https://e.org/{n}")
        for n, text in enumerate(TEXTS)
    ]  # fmt: skip
    store = build(documents, tmp_path / "s", **EVERY)
    found = explain(store, TEXTS[1], exclude=[name])[0]
    assert found == explain(store, TEXTS[1], exclude=["d1"])[0]
    assert {one.document for token in found.tokens for one in token.documents} >= {"d0", "d2"}
    assert "d1" not in {one.document for token in found.tokens for one in token.documents}


@pytest.fixture
def titled(model, tokenizer, tmp_path):
    """Four documents: two have one title, and one has the id of the fourth as its title."""
    documents = [
        knn_logits.Document(text, f"d{number}", title=title)
        for number, (text, title) in enumerate(
            zip(TEXTS, ["Same", "Same", "d3", None], strict=False)
        )
    ]
    return knn_logits.build_datastore(model, tokenizer, documents, tmp_path / "titled", **EVERY)


def test_a_name_of_several_documents_or_of_a_removed_one(model, tokenizer, titled):
    with pytest.raises(ConfigError, match=r"2 documents have the title or uri 'Same'.*'d0', 'd1'"):
        explain(model, tokenizer, titled, TEXTS[0], exclude=["Same"])
    store = knn_logits.remove_documents(titled, ["d3"])
    # The title of a document that is there counts before the id of one that is not.
    found = explain(model, tokenizer, store, TEXTS[0], exclude=["d3"])[0]
    assert {one.document for token in found.tokens for one in token.documents} == {"d0", "d1"}
