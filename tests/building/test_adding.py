import numpy as np
import pytest
import torch
from conftest import TEXTS
from folders import contents, names, one_line
from handmade import shards_of

import knn_logits
from knn_logits import Datastore, Document, IndexConfig, KNNConfig, WindowConfig
from knn_logits.building import indexing
from knn_logits.building.updating import add_documents
from knn_logits.errors import CorpusError
from knn_logits.index.opening import open_index
from knn_logits.search.retriever import Retriever
from knn_logits.store import layout

SMALL_WINDOW = WindowConfig(16, 8)
# Documents of two sentences, so that a tenth of them is not one.
DOCUMENTS = [
    Document(f"{one} {other}", f"{a}-{b}", title=f"{a} and {b}")
    for a, one in enumerate(TEXTS)
    for b, other in enumerate(TEXTS)
    if a < 5 and b < 4
]


@pytest.fixture(autouse=True)
def _small_shards():
    with shards_of(4096):
        yield


@pytest.fixture
def make(build, tmp_path):
    def built(name, documents, **settings):
        usual = {"window": SMALL_WINDOW, "k": 8, "calibrate": False}
        return build(documents, tmp_path / name, **{**usual, **settings})

    return built


def file_names(store):
    return [record.name for record in store.manifest.files]


def answers(model, tokenizer, store):
    prompts = [tokenizer(one)["input_ids"][:3] for one in ("When error", "In 1312 Oldenport")]
    with knn_logits.KNNLogitsProcessor(model, store, k=8, lmbda=0.5, temperature=5.0) as knn:
        return model.generate(
            input_ids=torch.tensor(prompts),
            logits_processor=[knn],
            do_sample=False,
            max_new_tokens=12,
        ).tolist()


def assert_the_same(one, other):
    """All that a datastore answers by."""
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.values.tolist() == other.values.tolist()
    assert len(one.documents) == len(other.documents)
    for number in range(len(one.documents)):
        assert one.documents[number] == other.documents[number]
    ids = np.arange(len(one))
    mine, theirs = one.keys(ids).astype(np.float64), other.keys(ids).astype(np.float64)
    # A matrix product of another shape may be summed in another order.
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
    assert (mine == theirs).mean() > 0.99


@pytest.mark.parametrize("concatenate", [False, True])
def test_ten_parts_one_after_another_are_one_build(model, tokenizer, make, concatenate):
    settings = {"index": IndexConfig("exact"), "concatenate": concatenate}
    whole = make("whole", DOCUMENTS, **settings)
    store = make("parts", DOCUMENTS[:2], **settings)
    for first in range(2, 20, 2):
        store = add_documents(model, tokenizer, store, iter(DOCUMENTS[first : first + 2]))
        assert store.manifest.generation == first // 2
    assert_the_same(store, whole)
    queries = torch.from_numpy(whole.keys(np.arange(0, len(whole), 7)).astype(np.float32))
    queries += torch.randn(queries.shape, generator=torch.Generator().manual_seed(0))
    found, expected = (
        Retriever(one, KNNConfig(k=16)).search(queries).ids.tolist() for one in (store, whole)
    )
    same = [len(set(a) & set(b)) / 16 for a, b in zip(found, expected, strict=True)]
    assert np.mean(same) > 0.999
    assert answers(model, tokenizer, store) == answers(model, tokenizer, whole)


# Keys are normalized before an index sees them, so one index shows what another metric does.
@pytest.mark.parametrize(
    ("metric", "factory"), [("l2", "IVF4,Flat"), ("l2", "IVF4,PQ8x4"), ("cosine", "IVF8,SQ8")]
)
def test_an_index_is_extended_and_not_trained_anew(model, tokenizer, make, factory, metric):
    store = make("s", DOCUMENTS[:15], index=IndexConfig(factory, metric))
    before = store.index_arrays
    grown = add_documents(model, tokenizer, store, DOCUMENTS[15:])
    after = grown.index_arrays
    for name in before.keys() - {"sizes", "ids", "codes"}:
        np.testing.assert_array_equal(before[name], after[name])
    index = open_index(grown)
    assert index.size == len(grown) > len(store)
    index.nprobe = 8
    new = np.arange(len(store), len(grown))
    _, ids = index.search(torch.from_numpy(grown.keys(new).astype(np.float32)), 8)
    shares = [own in row for own, row in zip(new.tolist(), ids.tolist(), strict=True)]
    assert np.mean(shares) > (0.5 if "PQ" in factory else 0.99)
    record = grown.manifest.index
    assert (record.factory, record.requested) == (factory, factory)
    assert record.nprobe == store.manifest.index.nprobe
    assert record.recall is not None


def test_an_automatic_choice_is_made_again(model, tokenizer, make, monkeypatch):
    store = make("s", DOCUMENTS[:4])
    assert store.manifest.index.factory == "exact"
    monkeypatch.setattr(indexing, "choose_factory", lambda entries, dim: "IVF4,SQ8")
    grown = add_documents(model, tokenizer, store, DOCUMENTS[4:8])
    assert (grown.manifest.index.factory, grown.manifest.index.requested) == ("IVF4,SQ8", "auto")
    fixed = make("t", DOCUMENTS[:4], index=IndexConfig("exact"))
    grown = add_documents(model, tokenizer, fixed, DOCUMENTS[4:8])
    assert grown.manifest.index.factory == "exact"


# Refusals


@pytest.mark.parametrize("documents", [[], [""], ["", ""]])
def test_nothing_to_add(model, tokenizer, make, documents):
    store = make("s", DOCUMENTS[:2])
    before = contents(store.folder)
    with pytest.raises(CorpusError, match="contain no tokens") as caught:
        add_documents(model, tokenizer, store, documents)
    one_line(caught)
    assert contents(store.folder) == before


def test_a_document_of_one_token_adds_no_entry(model, tokenizer, make):
    store = make("s", DOCUMENTS[:2])
    grown = add_documents(model, tokenizer, store, ["a"])
    assert (len(grown), grown.manifest.documents) == (len(store), 3)
    assert Datastore(grown.folder).documents[2].length == 1


# Going on


def test_an_addition_killed_at_its_very_end_is_not_done_twice(model, tokenizer, make, monkeypatch):
    store = make("s", DOCUMENTS[:4])
    with monkeypatch.context() as patch:
        patch.setattr("knn_logits.store.files.unlink", lambda path: None)
        grown = add_documents(model, tokenizer, store, DOCUMENTS[4:6])
    assert layout.JOURNAL in names(store.folder)
    again = add_documents(model, tokenizer, store.folder, DOCUMENTS[4:6])
    assert again.manifest == grown.manifest
    assert set(names(store.folder)) == {layout.MANIFEST, *file_names(again)}
    # Nor is it at any later time.
    assert add_documents(model, tokenizer, again, DOCUMENTS[4:6]).manifest == grown.manifest
