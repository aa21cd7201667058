"""Datastores of earlier systems, made ones of this package: the same neighbors, or a refusal."""

import numpy as np
import pytest
import torch
from conftest import TEXTS, make_gpt2
from legacy_files import faiss_index, knn_transformers, stored_keys, write_index, write_memmap

import knn_logits
from knn_logits import IndexConfig, KNNConfig, WindowConfig
from knn_logits.errors import DamagedError, DatastoreError, MismatchError
from knn_logits.lab.importing import import_datastore
from knn_logits.search.retriever import Retriever


@pytest.fixture(scope="module")
def old(build, tmp_path_factory):
    """One stream of text, which is what earlier systems store."""
    return build(
        TEXTS * 2,
        tmp_path_factory.mktemp("stores") / "stream",
        window=WindowConfig(256, 128),
        concatenate=True,
        index=IndexConfig("exact"),
    )


@pytest.fixture(scope="module")
def index(old):
    return faiss_index(stored_keys(old))


def imported(model, tokenizer, folder, out, **options):
    return import_datastore(model, tokenizer, folder, out, window=WindowConfig(256, 128), **options)


def test_the_same_neighbors_and_values(model, tokenizer, old, index, tmp_path):
    clusters = np.random.default_rng(0).integers(0, 7, len(old))
    folder = knn_transformers(tmp_path / "old", old, index=index, clusters=clusters)
    store = imported(model, tokenizer, folder, tmp_path / "new", license="CC0-1.0")
    np.testing.assert_array_equal(store.values.numpy(), old.values.numpy())
    np.testing.assert_array_equal(stored_keys(store), stored_keys(old))
    np.testing.assert_array_equal(store.clusters, clusters)
    assert store.manifest.index.factory == "IVF4,PQ8x4"
    assert store.manifest.index.nprobe == 4
    assert store.manifest.index.recall.value > 0.3
    assert (store.manifest.settings.temperature, store.manifest.license) == (1.0, "CC0-1.0")
    queries = stored_keys(old)[::9].astype(np.float32)
    distances, ids = index.search(queries, 20)
    found = Retriever(store, KNNConfig(k=20)).search(torch.from_numpy(queries))
    order = found.distances.argsort(dim=1)
    # FAISS adds up in another order where it keeps a table of its lists, which is not made here.
    np.testing.assert_allclose(found.distances.gather(1, order).numpy(), distances, rtol=1e-5)
    assert [set(row) for row in found.ids.tolist()] == [set(row) for row in ids.tolist()]
    # It is a datastore like any other: it is verified, and generates with sources.
    assert knn_logits.Datastore.from_pretrained(store.folder).manifest.documents == 1
    inputs = tokenizer("When error code E42", return_tensors="pt")
    with knn_logits.KNNLogitsProcessor(model, store, k=8) as knn:
        output = model.generate(**inputs, logits_processor=[knn], max_new_tokens=4)
        neighbor = knn.trace(output, tokenizer)[0].tokens[0].neighbors[0]
    assert neighbor.document == f"dstore_gpt2_{len(old)}_32_vals.npy"


def test_without_keys(model, tokenizer, old, index, tmp_path, caplog):
    folder = knn_transformers(tmp_path / "old", old, keys=False, index=index)
    store = imported(model, tokenizer, folder, tmp_path / "new")
    assert not store.offers_keys
    assert "refine, add, compact" in caplog.text
    assert store.manifest.index.recall is None
    queries = torch.from_numpy(stored_keys(old)[:3].astype(np.float32))
    found = Retriever(store, KNNConfig(k=5)).search(queries)
    assert [set(row) for row in found.ids.tolist()] == [
        set(row) for row in index.search(queries.numpy(), 5)[1].tolist()
    ]
    with pytest.raises(DatastoreError, match="no keys"):
        Retriever(store, KNNConfig(k=5, refine=True))
    (folder / f"index_gpt2_{len(old)}_32.indexed").unlink()
    with pytest.raises(DatastoreError, match="neither keys nor an index"):
        imported(model, tokenizer, folder, tmp_path / "n2")
    assert not (tmp_path / "n2").exists()


@pytest.mark.parametrize(("keys", "values"), [("<f2", "<i2"), ("<f4", "<i4"), ("<f4", "<i8")])
def test_files_of_knnlm(model, tokenizer, old, index, tmp_path, keys, values):
    folder = tmp_path / "old"
    folder.mkdir()
    write_memmap(folder / "keys.npy", stored_keys(old).astype(keys))
    write_memmap(folder / "vals.npy", old.values.numpy().astype(values))
    write_index(folder / "faiss.index", index)
    store = imported(model, tokenizer, folder, tmp_path / "new")
    np.testing.assert_array_equal(store.values.numpy(), old.values.numpy())
    np.testing.assert_array_equal(stored_keys(store), stored_keys(old).astype(keys))
    assert store.manifest.dtype == ("float32" if keys == "<f4" else "float16")


def test_an_index_that_is_not_read_as_data_gives_way_to_a_new_one(
    model, tokenizer, old, index, tmp_path
):
    folder = knn_transformers(tmp_path / "old", old, index=index)
    (folder / f"index_gpt2_{len(old)}_32.indexed").write_bytes(b"IHNf" + bytes(100))
    store = imported(model, tokenizer, folder, tmp_path / "newer")
    assert store.manifest.index.factory == "exact"


def test_the_end_that_was_never_written_is_left_out(model, tokenizer, old, tmp_path, caplog):
    spare, dim = 40, old.manifest.dim
    keys = np.concatenate([stored_keys(old), np.zeros((spare, dim), np.float16)])
    values = np.concatenate([old.values.numpy(), np.zeros(spare, np.int32)])
    folder = tmp_path / "old"
    folder.mkdir()
    stem = f"gpt2_{len(values)}_{dim}"
    write_memmap(folder / f"dstore_{stem}_keys.npy", keys)
    write_memmap(folder / f"dstore_{stem}_vals.npy", values)
    write_index(folder / f"index_{stem}.indexed", faiss_index(keys))
    store = imported(model, tokenizer, folder, tmp_path / "new")
    assert len(store) == len(old)
    assert f"{spare} entries at the end were never written" in caplog.text
    queries = torch.zeros(1, dim)
    found = Retriever(store, KNNConfig(k=2000)).search(queries).ids
    assert int(found.max()) < len(old)


def test_another_model_is_refused(tokenizer, old, index, tmp_path):
    folder = knn_transformers(tmp_path / "old", old, index=index)
    with pytest.raises(MismatchError, match=r"not this model's states.*--key"):
        imported(make_gpt2(seed=5), tokenizer, folder, tmp_path / "new")
    with pytest.raises(MismatchError, match="32-dimensional vectors"):
        imported(make_gpt2(width=16), tokenizer, folder, tmp_path / "new")
    with pytest.raises(MismatchError, match="does not contain tokens of this model"):
        imported(make_gpt2(vocabulary=300), tokenizer, folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_keys_that_are_not_finite(model, tokenizer, old, tmp_path):
    folder = knn_transformers(tmp_path / "old", old)
    keys = stored_keys(old)
    keys[3, 2] = np.nan
    write_memmap(folder / f"dstore_gpt2_{len(old)}_32_keys.npy", keys)
    with pytest.raises(DamagedError, match="not finite"):
        imported(model, tokenizer, folder, tmp_path / "new")


def test_clusters_that_do_not_fit_are_refused(model, tokenizer, old, tmp_path):
    folder = knn_transformers(tmp_path / "old", old, clusters=np.zeros(len(old) - 1, np.int64))
    with pytest.raises(DamagedError, match="not a pickled matrix of clusters"):
        imported(model, tokenizer, folder, tmp_path / "new")
