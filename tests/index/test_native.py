"""An index in FAISS's own format: written and read only for those who ask by name."""

import logging

import numpy as np
import pytest
import torch
from folders import names, refit
from handmade import make_store

from knn_logits import DamagedError, Datastore, DatastoreError, IndexConfig, build_index
from knn_logits.index import native
from knn_logits.index.faiss_backend import FaissIndex
from knn_logits.index.opening import open_index
from knn_logits.store import layout

RANDOM = np.random.default_rng(7)
DOCUMENTS = [RANDOM.integers(0, 100, 41).tolist() for _ in range(10)]
KEYS = RANDOM.standard_normal((400, 8)).astype(np.float16)
FACTORIES = ["HNSW8", "HNSW8,SQ8", "IVF4_HNSW4,Flat", "SQ8", "PCA4,HNSW8"]


@pytest.fixture
def make(tmp_path):
    def built(factory, name="s", *, metric="l2", asked=True, **settings):
        store = make_store(tmp_path / name, DOCUMENTS, KEYS, **settings)
        return build_index(store, IndexConfig(factory, metric, native=asked))

    return built


def queries():
    return torch.randn(20, 8, generator=torch.Generator().manual_seed(1))


def without_keys(store):
    files = [one for one in store.manifest.files if layout.kind_of(one.name) != "keys"]
    store.manifest.model_copy(update={"files": tuple(files)}).write(store.folder)
    return Datastore(store.folder)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_asked_for_on_both_sides_answers_as_the_one_built(make, factory, metric, caplog):
    store = make(factory, metric=metric)
    assert store.manifest.index.native
    assert "index.1.faiss" in names(store.folder)
    with caplog.at_level(logging.WARNING, "knn_logits"):
        read = open_index(store, native=True)
        assert not caplog.records
        built = open_index(store)
    assert "built from the keys" in caplog.text
    assert isinstance(read, FaissIndex)
    assert (read.size, read.dim, read.metric) == (400, 8, metric)
    assert read.nprobe == built.nprobe
    one, other = read.search(queries(), 5), built.search(queries(), 5)
    assert torch.equal(one[1], other[1])
    assert torch.equal(one[0], other[0])


def test_who_does_not_ask_does_not_read_it(make, monkeypatch):
    def refused(*arguments, **settings):
        raise AssertionError("FAISS's format was read")

    monkeypatch.setattr(native, "from_bytes", refused)
    store = make("HNSW8")
    assert open_index(store).size == 400
    with pytest.raises(DatastoreError, match="--native-index if you trust its publisher"):
        open_index(without_keys(store))


def test_who_does_not_ask_does_not_write_it(make):
    store = make("HNSW8", asked=False)
    assert not store.manifest.index.native
    assert store.manifest.file("native") is None
    assert open_index(store, native=True).size == 400
    with pytest.raises(DatastoreError, match="build it"):
        open_index(without_keys(store), native=True)


def test_an_index_with_a_plain_form_takes_that(make):
    store = make("IVF4,SQ8")
    assert not store.manifest.index.native
    assert (store.manifest.file("native"), store.native_index()) == (None, None)
    assert store.index_arrays() is not None


def test_it_suffices_for_a_search(make):
    store = make("HNSW8")
    expected = open_index(store, native=True).search(queries(), 5)
    found = open_index(without_keys(store), native=True).search(queries(), 5)
    assert torch.equal(found[1], expected[1])


def test_what_is_open_stays_as_it_was(make):
    store = make("HNSW8")
    build_index(Datastore(store.folder), IndexConfig("Flat"))
    assert open_index(store, native=True).size == 400


@pytest.mark.parametrize("other", ["HNSW4,SQ8", "IVF4_HNSW4,Flat", "Flat"])
def test_an_index_of_another_kind(make, other):
    store = make("HNSW8")
    data = make(other, "other").native_index() or b"\0" * 100
    with pytest.raises(DamagedError, match="is not a 'HNSW8'") as caught:
        native.from_bytes(data, "HNSW8", 8, "l2", 400)
    assert "\n" not in str(caught.value)
    (store.folder / store.manifest.file("native").name).write_bytes(data)
    refit(store.folder)
    with pytest.raises(DamagedError):
        open_index(Datastore(store.folder), native=True)


@pytest.mark.parametrize(("dim", "metric", "size"), [(9, "l2", 400), (8, "ip", 400), (8, "l2", 3)])
def test_an_index_of_another_size(make, dim, metric, size):
    data = make("HNSW8").native_index()
    with pytest.raises(DamagedError):
        native.from_bytes(data, "HNSW8", dim, metric, size)


@pytest.mark.parametrize("cut", [0, 1, 10, 100, 1000])
def test_an_index_that_was_cut(make, cut):
    data = make("HNSW8").native_index()
    with pytest.raises(DamagedError):
        native.from_bytes(data[:cut], "HNSW8", 8, "l2", 400)


def test_of_another_text_it_does_not_find_what_it_found(make, tmp_path):
    store = make("HNSW8")
    other = make_store(tmp_path / "o", DOCUMENTS, KEYS[::-1].copy())
    other = build_index(other, IndexConfig("HNSW8", native=True))
    (store.folder / store.manifest.file("native").name).write_bytes(other.native_index())
    refit(store.folder)
    with pytest.raises(DamagedError, match="returns different entries than"):
        open_index(Datastore(store.folder), native=True)
