import numpy as np
import pytest
import torch
from conftest import TEXTS
from folders import hashes, names, one_line, refit
from random_keys import KEYS, make_random

import knn_logits
from knn_logits import Datastore, IndexConfig, KNNConfig, build_index
from knn_logits.building.indexing import build_suffixes
from knn_logits.building.removing import compact
from knn_logits.errors import ConfigError, DamagedError
from knn_logits.index.exact import ExactIndex
from knn_logits.search.retriever import Retriever
from knn_logits.store import files, layout
from knn_logits.store.files import write_arrays
from knn_logits.store.suffixes import suffix_order


@pytest.fixture
def plain(tmp_path):
    return make_random(tmp_path / "s")


def unchanged(one, other):
    return {name for name, found in one.items() if other.get(name) == found}


def test_another_index_and_metric_keep_the_entries(plain):
    values, before = plain.values, hashes(plain.folder)
    queries = torch.from_numpy(np.random.default_rng(9).standard_normal((9, 8)).astype(np.float32))
    store = plain
    for factory, metric in [
        ("IVF8,Flat", "cosine"),
        ("IVF4,Flat", "ip"),
        ("exact", "l2"),
        ("IVF8,SQ8", "l2"),
        ("auto", "cosine"),
    ]:
        store = build_index(store, IndexConfig(factory, metric))
        assert store.manifest == Datastore(store.folder).manifest
        record = store.manifest.index
        assert record.requested == factory
        assert record.factory == ("exact" if factory == "auto" else factory)
        assert store.manifest.metric == metric
        assert any("index" in name for name in names(store.folder)) == (record.factory != "exact")
        assert (store.manifest.file("index") is not None) == (record.factory != "exact")
        assert set(names(store.folder)) == {
            layout.MANIFEST,
            *(one.name for one in store.manifest.files),
        }
        assert torch.equal(store.values, values)
        np.testing.assert_array_equal(store.keys(np.arange(1200)), KEYS)
        assert {"tokens.npy", "documents.jsonl", "keys-00000.npy"} <= unchanged(
            before, hashes(store.folder)
        )
        found = Retriever(store, KNNConfig(k=5, nprobe=8, refine=True)).search(queries)
        keys = torch.from_numpy(KEYS).float()
        true = ExactIndex(keys, metric).search(queries, 5)
        overlap = [
            len(set(a) & set(b)) / 5
            for a, b in zip(found.ids.tolist(), true[1].tolist(), strict=True)
        ]
        assert np.mean(overlap) > 0.9
        for file in store.manifest.files:
            assert hashes(store.folder)[file.name] == file.sha256


@pytest.mark.parametrize("factory", ["nonsense", "IVF8,PQ3", "IVF4096,Flat"])
def test_an_index_that_cannot_be_made_leaves_the_old_one(plain, factory):
    build_index(plain, IndexConfig("IVF8,SQ8", "ip"))
    before = hashes(plain.folder)
    with pytest.raises(ConfigError):
        build_index(plain, IndexConfig(factory))
    assert hashes(plain.folder) == before


def test_a_changed_index_is_refused(plain):
    store = build_index(plain, IndexConfig("IVF2,Flat", nprobe=2))
    arrays = store.index_arrays
    arrays["ids"] = arrays["ids"][::-1].copy()
    write_arrays(store.folder / store.manifest.file("index").name, arrays, {})
    with pytest.raises(DamagedError, match="index"):
        Datastore(store.folder)


@pytest.mark.parametrize("factory", ["IVF9999999,Flat", "IVF64,PQ4x12"])
def test_what_the_text_is_too_short_for_is_refused_before_the_keys(
    build, store, tmp_path, monkeypatch, factory
):
    def never(*_, **__):
        raise AssertionError("keys were computed")

    with pytest.raises(ConfigError, match="needs at least"):
        build_index(store, IndexConfig(factory))
    monkeypatch.setattr("knn_logits.building.steps.Steps.write_keys", never)
    with pytest.raises(ConfigError, match="needs at least"):
        build(TEXTS, tmp_path / "s", index=IndexConfig(factory))
    assert not (tmp_path / "s").exists()


def is_whole(store):
    Datastore(store.folder)
    order = suffix_order(np.asarray(store.tokens), store.documents.first)
    return np.array_equal(store.suffixes, order)


def test_four_bytes_a_token(copied):
    before = hashes(copied)
    told = []
    store = build_suffixes(copied, progress=lambda *one: told.append(one))
    record = store.manifest.file("suffixes")
    assert record.dtype == "uint32"
    assert record.bytes <= 4 * store.manifest.tokens + 128
    assert is_whole(store)
    assert told
    after = hashes(copied)
    assert set(after) - set(before) == {record.name}
    assert {name for name in before if before[name] != after[name]} == {"datastore.json"}
    assert hashes(build_suffixes(copied).folder) == after


def test_it_goes_with_documents_that_come_and_go(model, tokenizer, copied):
    build_suffixes(copied)
    store = knn_logits.add_documents(model, tokenizer, copied, ["A new crane lifts crates."])
    assert len(store.suffixes) == store.manifest.tokens - store.manifest.documents
    assert is_whole(store)
    removed = knn_logits.remove_documents(copied, ["2", "5"])
    assert is_whole(removed)
    compacted = compact(copied)
    assert len(compacted.suffixes) < len(store.suffixes)
    assert is_whole(compacted)
    kept = [knn_logits.Document(text, str(number)) for number, text in enumerate(TEXTS[3:], 3)]
    synced = knn_logits.sync_documents(model, tokenizer, copied, kept).datastore
    assert is_whole(synced)
    assert is_whole(knn_logits.build_index(copied, knn_logits.IndexConfig("exact", "cosine")))


HOSTILE = {
    "beyond the text": lambda order: np.where(order == order[3], 2**32 - 1, order).astype("u4"),
    "shorter": lambda order: order[:-1],
    "longer": lambda order: np.append(order, order),
    "of another type": lambda order: order.astype(np.int32),
    "of two dimensions": lambda order: order.reshape(1, -1),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_arrays_are_refused(copied, change):
    store = build_suffixes(copied)
    name = store.manifest.file("suffixes").name
    files.write_array(copied / name, change(np.array(store.suffixes)))
    refit(copied)
    with pytest.raises(DamagedError) as caught:
        Datastore(copied)
    assert "suffixes" in one_line(caught)
