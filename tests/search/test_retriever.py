import numpy as np
import pytest
import torch
from distances import all_distances
from handmade import make_store, naive_entries

from knn_logits.building.indexing import build_index
from knn_logits.errors import DamagedError, DatastoreError
from knn_logits.index.opening import open_index
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import IndexConfig, KNNConfig
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import write_documents
from knn_logits.store.files import write_array

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


@pytest.mark.parametrize(
    ("factory", "metric"), [("exact", "l2"), *(("IVF4,Flat", metric) for metric in METRICS)]
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
    distances = all_distances(asked, torch.from_numpy(KEYS), metric)
    nearest = np.argsort(distances if metric == "l2" else -distances, axis=-1)[:, :10]
    for row in range(12):
        assert sorted(found.ids[row].tolist()) == sorted(nearest[row].tolist())
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
    true = all_distances(asked, torch.from_numpy(KEYS), metric)
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


def test_an_index_with_neither_file_nor_keys(tmp_path):
    store = make(tmp_path / "s", with_keys=False)
    with pytest.raises(DatastoreError, match="no keys"):
        open_index(store)
    record = store.manifest.index.model_copy(update={"factory": "IVF4,Flat"})
    store.manifest.model_copy(update={"index": record}).write(store.folder)
    with pytest.raises(DamagedError, match="no file of its index"):
        open_index(Datastore(store.folder))


@pytest.mark.parametrize("factory", ["IVF8,SQ8", "nonsense"])
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
