import logging

import numpy as np
import pytest
import torch
from handmade import make_store, naive_entries

from knn_logits.building.indexing import build_index
from knn_logits.errors import DamagedError, DatastoreError
from knn_logits.index.exact import ExactIndex
from knn_logits.index.faiss_backend import FaissIndex
from knn_logits.index.opening import Indexes, index_from_keys, open_index, training_sample
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import IndexConfig, KNNConfig
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import write_documents
from knn_logits.store.files import write_array
from knn_logits.store.layout import PROBE_DISTANCES, PROBE_IDS, PROBE_QUERIES

METRICS = ["l2", "ip", "cosine"]
RANDOM = np.random.default_rng(5)
DOCUMENTS = [RANDOM.integers(0, 100, RANDOM.integers(1, 40)).tolist() for _ in range(20)]
ENTRIES = naive_entries(DOCUMENTS)
DIM = 8
KEYS = RANDOM.standard_normal((len(ENTRIES), DIM)).astype(np.float16)


def make(folder, metric="l2", factory="exact", **settings):
    store = make_store(folder, DOCUMENTS, KEYS, metric=metric, shard_bytes=1000, **settings)
    if factory != "exact":
        store = build_index(store, IndexConfig(factory, metric))
    return store


def queries(rows=12, seed=1):
    return torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))


def all_distances(asked, metric):
    asked, keys = asked.double().numpy(), KEYS.astype(np.float64)
    if metric == "l2":
        return ((asked[:, None] - keys) ** 2).sum(-1)
    if metric == "cosine":
        asked = asked / np.linalg.norm(asked, axis=-1, keepdims=True)
        keys = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    return asked @ keys.T


def nearest(asked, metric, k):
    distances = all_distances(asked, metric)
    return np.argsort(distances if metric == "l2" else -distances, axis=-1, kind="stable")[:, :k]


# Searching


@pytest.mark.parametrize(
    ("factory", "metric"), [("exact", "l2"), ("IVF4,Flat", "ip"), ("IVF4,Flat", "cosine")]
)
def test_neighbors_are_the_nearest_entries_and_their_tokens(tmp_path, metric, factory):
    store = make(tmp_path / "s", metric, factory)
    retriever = Retriever(store, KNNConfig(k=10, nprobe=4))
    asked = queries()
    found = retriever.search(asked)
    assert (found.rows, found.k) == (12, 10)
    assert found.mask.all()
    assert found.values.dtype == found.ids.dtype == torch.int64
    assert found.distances.dtype == torch.float32
    expected, distances = nearest(asked, metric, 10), all_distances(asked, metric)
    for row in range(12):
        assert sorted(found.ids[row].tolist()) == sorted(expected[row].tolist())
        for one, value, distance in zip(
            found.ids[row].tolist(),
            found.values[row].tolist(),
            found.distances[row].tolist(),
            strict=True,
        ):
            assert value == ENTRIES[one][2]
            assert distance == pytest.approx(distances[row, one], abs=1e-4)


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("refine", [False, True])
def test_padding_has_infinite_distance_and_a_real_token(tmp_path, metric, refine):
    store = make(tmp_path / "s", metric, "IVF8,SQ8")
    retriever = Retriever(store, KNNConfig(k=len(ENTRIES), nprobe=1, refine=refine))
    asked = queries(5)
    asked[3, 0] = float("nan")
    found = retriever.search(asked)
    assert not found.mask.all()
    assert (found.distances[~found.mask] == (np.inf if metric == "l2" else -np.inf)).all()
    assert found.distances[found.mask].isfinite().all()
    assert not found.mask[3].any()
    assert ((found.values >= 0) & (found.values < 100)).all()
    asked[:] = float("inf")
    assert not retriever.search(asked).mask.any()


@pytest.mark.parametrize("metric", METRICS)
def test_refined_distances_are_those_of_the_stored_keys(tmp_path, metric, monkeypatch):
    store = make(tmp_path / "s", metric, "IVF4,SQ4")
    asked = queries()
    true = all_distances(asked, metric)
    coarse = Retriever(store, KNNConfig(k=20, nprobe=4)).search(asked)
    retriever = Retriever(store, KNNConfig(k=20, nprobe=4, refine=True))
    fine = retriever.search(asked)
    assert torch.equal(fine.ids, coarse.ids)
    assert torch.equal(fine.values, coarse.values)
    expected = np.take_along_axis(true, fine.ids.numpy(), -1)
    np.testing.assert_allclose(fine.distances.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(coarse.distances.numpy() - expected).max() > 1e-3
    # In parts, when the keys of all rows would take too much memory.
    monkeypatch.setattr("knn_logits.search.retriever._REFINE_NUMBERS", 20 * DIM * 5)
    torch.testing.assert_close(retriever.search(asked).distances, fine.distances)


def test_a_datastore_without_entries(tmp_path):
    store = make(tmp_path / "s")
    empty = store.manifest.model_copy(
        update={"entries": 0, "documents": 0, "tokens": 0, "files": ()}
    )
    write_array(store.folder / layout.TOKENS, np.empty(0, np.int32))
    write_documents(store.folder / layout.DOCUMENTS, [])
    store = Datastore.unfinished(store.folder, empty)
    assert len(store.values) == 0
    found = Retriever(store, KNNConfig(k=4)).search(queries(3))
    assert (found.rows, found.k) == (3, 0)


# The truth that recall is measured against


# Building and opening


def test_the_training_sample(tmp_path):
    store = make(tmp_path / "s")
    keys = {row.tobytes(): number for number, row in enumerate(KEYS.astype(np.float32))}
    sample = training_sample(store, 20, 3)
    assert sample.shape == (20, DIM)
    assert sample.dtype == np.float32
    places = [keys[row.tobytes()] for row in sample]
    assert places == sorted(set(places))
    np.testing.assert_array_equal(training_sample(store, 20, 3), sample)
    assert not np.array_equal(training_sample(store, 20, 4), sample)
    np.testing.assert_array_equal(training_sample(store, 10**6, 0), KEYS.astype(np.float32))


@pytest.mark.parametrize(
    ("factory", "metric"), [("exact", "l2"), ("IVF4,Flat", "ip"), ("IVF4,SQ8", "cosine")]
)
def test_an_index_opened_answers_as_the_one_built(tmp_path, metric, factory, caplog):
    store = make(tmp_path / "s", metric, factory)
    kind = ExactIndex if factory == "exact" else FaissIndex
    with caplog.at_level(logging.WARNING, "knn_logits"):
        opened = open_index(Datastore(store.folder))
    assert not caplog.records
    built = index_from_keys(store, factory, IndexConfig(factory, metric))
    for index in (opened, built):
        assert isinstance(index, kind)
        assert (index.size, index.dim, index.metric) == (len(ENTRIES), DIM, metric)
    if factory.startswith("IVF"):
        assert opened.nprobe == store.manifest.index.nprobe
        built.nprobe = opened.nprobe
    asked = queries()
    one, other = opened.search(asked, 9), built.search(asked, 9)
    assert torch.equal(one[1], other[1])
    assert torch.equal(one[0], other[0])


@pytest.mark.parametrize("factory", ["HNSW8"])
def test_an_index_without_a_plain_form_is_built_from_the_keys_with_a_warning(
    tmp_path, factory, caplog
):
    with caplog.at_level(logging.WARNING, "knn_logits"):
        store = make(tmp_path / "s", "l2", factory)
        assert factory in caplog.text
        assert store.manifest.file("index") is None
        caplog.clear()
        index = open_index(store)
    assert [factory in record.getMessage() for record in caplog.records] == [True]
    assert isinstance(index, FaissIndex)
    _, ids = index.search(queries(), 5)
    assert ids.shape == (12, 5)
    assert (ids >= 0).all()


def test_an_index_with_neither_file_nor_keys(tmp_path):
    store = make(tmp_path / "s", with_keys=False)
    with pytest.raises(DatastoreError, match="no keys"):
        open_index(store)
    record = store.manifest.index.model_copy(update={"factory": "IVF4,Flat"})
    store.manifest.model_copy(update={"index": record}).write(store.folder)
    with pytest.raises(DatastoreError, match="neither an index of plain arrays nor keys"):
        open_index(Datastore(store.folder))


def test_an_index_file_suffices_for_a_search(tmp_path):
    store = make(tmp_path / "s", "l2", "IVF4,SQ8")
    expected = Retriever(store, KNNConfig(k=5)).search(queries())
    files = [one for one in store.manifest.files if layout.kind_of(one.name) != "keys"]
    store.manifest.model_copy(update={"files": tuple(files)}).write(store.folder)
    for path in store.folder.glob("keys-*"):
        path.unlink()
    again = Datastore(store.folder)
    assert not again.has_keys
    found = Retriever(again, KNNConfig(k=5)).search(queries())
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.values, expected.values)


@pytest.mark.parametrize("factory", ["IVF8,SQ8", "HNSW8", "nonsense"])
def test_an_index_file_of_another_kind(tmp_path, factory):
    store = make(tmp_path / "s", "l2", "IVF4,SQ8")
    record = store.manifest.index.model_copy(update={"factory": factory})
    store.manifest.model_copy(update={"index": record}).write(store.folder)
    with pytest.raises(DamagedError) as caught:
        open_index(Datastore(store.folder))
    assert "\n" not in str(caught.value)


def test_keys_that_do_not_fit_the_manifest_are_found_before_memory_is_asked_for(tmp_path):
    store = make(tmp_path / "s")
    for field in ({"entries": 10**13}, {"dim": 1 << 16}):
        store.manifest.model_copy(update=field).write(store.folder)
        with pytest.raises(DamagedError):
            Retriever(Datastore(store.folder), KNNConfig())


@pytest.mark.gpu
def test_on_a_gpu_neighbors_stay_on_the_device(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU")
    store = make(tmp_path / "s")
    expected = Retriever(store, KNNConfig(k=5)).search(queries())
    for refine in (False, True):
        retriever = Retriever(store, KNNConfig(k=5, refine=refine), indexes=Indexes("cuda"))
        found = retriever.search(queries().cuda())
        assert found.ids.is_cuda
        assert found.values.is_cuda
        assert found.distances.is_cuda
        assert torch.equal(found.ids.cpu(), expected.ids)
        assert torch.equal(found.values.cpu(), expected.values)


@pytest.mark.parametrize("factory", ["exact", "IVF4,Flat"])
@pytest.mark.parametrize("probe", [{}, {PROBE_QUERIES: np.empty((0, 4), np.float32)}])
def test_an_index_without_a_probe_is_opened_with_a_warning(tmp_path, caplog, factory, probe):
    tokens = np.arange(60).tolist()
    store = build_index(make_store(tmp_path / "s", [tokens], vocabulary=100), IndexConfig(factory))
    if probe:
        probe |= {PROBE_IDS: np.empty((0, 8), np.int64)}
    store.checks = probe
    caplog.clear()
    open_index(store)
    assert ("has no probe" in caplog.text) == (factory != "exact")


@pytest.mark.filterwarnings("error")
def test_a_probe_of_huge_queries_is_asked_without_a_warning_of_numpy(tmp_path):
    """In single precision their squares are infinite."""
    store = make(tmp_path / "s", "ip", factory="IVF4,Flat")
    asked = store.checks[PROBE_QUERIES] * np.float32(1e30)
    distances, ids = open_index(store).search(torch.from_numpy(asked), 8)
    probe = (asked, ids.numpy(), distances.numpy())
    names = (PROBE_QUERIES, PROBE_IDS, PROBE_DISTANCES)
    store.checks = store.checks | dict(zip(names, probe, strict=True))
    assert open_index(store).size == len(store)
