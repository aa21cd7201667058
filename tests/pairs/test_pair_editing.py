"""Datastores of pairs that grow and shrink."""

import dataclasses

import pytest
from building import MANY, SMALL, builder
from conftest import PAIRS, pair_documents
from folders import contents
from interrupted import Stop, stopping

import knn_logits
from knn_logits import Document
from knn_logits.building.removing import compact
from knn_logits.errors import CorpusError, MismatchError
from knn_logits.store.verification import damage


@pytest.fixture
def build(marian, pair_tokenizer, tmp_path):
    return builder(marian, pair_tokenizer, tmp_path)


def test_an_addition_that_was_stopped_goes_on(marian, pair_tokenizer, build, monkeypatch):
    monkeypatch.setattr("knn_logits.engine.windows._BUFFER_BYTES", 1024)
    monkeypatch.setattr("knn_logits.store.writer.SHARD_BYTES", 4096)
    stores = [build(name, MANY[:16], **SMALL) for name in ("a", "b")]
    add = lambda store, more, **options: knn_logits.add_documents(  # noqa: E731
        marian, pair_tokenizer, store, more, **SMALL, **options
    )
    expected = contents(add(stores[0], MANY[16:]).folder)
    with pytest.raises(Stop):
        add(stores[1], MANY[16:], progress=stopping(500))
    swapped = [dataclasses.replace(MANY[16], source="Another."), *MANY[17:]]
    with pytest.raises(MismatchError):
        add(stores[1], swapped)
    assert contents(add(stores[1], MANY[16:]).folder) == expected


def test_what_was_removed_is_not_found_and_then_nowhere(marian, pair_tokenizer, build):
    secret = Document("Der Zylinder quietscht.", "secret", source="Zebras whisper quizzically.")
    store = build(documents=[*pair_documents()[:4], secret, *pair_documents()[4:]])
    tokens = store.tokens[store.documents[4].first :][: store.documents[4].length].copy()
    store = knn_logits.remove_documents(store, ["secret", "p0"])

    every = {"k": 200, "max_neighbors": 200}

    def found(store):
        trace = knn_logits.explain(
            marian, pair_tokenizer, store, secret.text, source=secret.source, **every
        )
        return {near.document for token in trace[0].tokens for near in token.neighbors}

    assert found(store) == {f"p{number}" for number in range(1, 8)}
    assert b"quizzically" in b"".join(contents(store.folder).values())
    small = compact(store)
    assert found(small) == {f"p{number}" for number in range(1, 8)}
    assert small.documents.sources(range(7)) == [source for source, _ in PAIRS[1:]]
    assert not damage(small.folder, small.manifest)
    everything = b"".join(contents(small.folder).values())
    assert b"Zebras" not in everything
    assert b"quizzically" not in everything
    assert tokens[1:6].tobytes() not in everything
    grown = knn_logits.add_documents(marian, pair_tokenizer, small, [secret])
    assert found(grown) == {"secret", *(f"p{number}" for number in range(1, 8))}


@pytest.mark.parametrize("documents", [["a text"], [Document("a text", "d")]])
def test_texts_without_a_source_are_not_added(marian, pair_tokenizer, pair_copy, documents):
    before = {name: data for name, data in contents(pair_copy).items() if name.endswith("json")}
    with pytest.raises(CorpusError, match="has no source"):
        knn_logits.add_documents(marian, pair_tokenizer, pair_copy, documents)
    assert contents(pair_copy).items() >= before.items()
    assert not damage(pair_copy, knn_logits.Datastore(pair_copy).manifest)
