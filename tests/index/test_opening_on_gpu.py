"""Which form an index takes on a GPU. A processor stands for it, since the code is the same."""

import gc
import weakref

import numpy as np
import pytest
import torch
from distances import by_distance
from handmade import make_store

from knn_logits import Datastore, IndexConfig, build_index
from knn_logits.index import compact, opening
from knn_logits.index.compact import CompactIndex
from knn_logits.index.faiss_library import FaissIndex
from knn_logits.index.opening import open_compact, open_index, whole_index

DIM, PLENTY = 8, 10**12
CPU = torch.device("cpu")
DOCUMENTS = [list(range(one, one + 60)) for one in range(5)]
KEYS = np.random.default_rng(0).standard_normal((295, DIM)).astype(np.float16)


@pytest.fixture(params=["l2", "ip", "cosine"])
def store(request, tmp_path):
    made = make_store(tmp_path / "s", DOCUMENTS, KEYS, metric=request.param)
    return build_index(made, IndexConfig("IVF8,Flat", request.param, nprobe=8))


def queries(rows=12):
    return torch.randn(rows, DIM, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def on_gpu(monkeypatch):
    """Opens an index as on a GPU with `free` bytes."""

    def opened(store, free=PLENTY, **settings):
        real = open_compact
        monkeypatch.setattr(opening, "open_compact", lambda one, _, free: real(one, CPU, free))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
        return open_index(store, device="cuda", **settings)

    return opened


def test_the_first_form_that_fits_is_taken(store, on_gpu, monkeypatch):
    monkeypatch.setattr(compact, "_BLOCK", 16)
    size = len(store) * DIM
    forms = {4 * size: 2, 2.5 * size: 1}
    expected = by_distance(whole_index(store), queries(), 20)
    for free, bytes_ in forms.items():
        index = on_gpu(store, int(free))
        assert isinstance(index, CompactIndex)
        assert index._keys.element_size() == bytes_
        found = by_distance(index, queries(), 20)
        torch.testing.assert_close(
            found[0], expected[0].sort(descending=store.manifest.metric != "l2").values
        )
    assert isinstance(on_gpu(store, size), FaissIndex)


def test_removed_and_excluded_documents_are_not_found(store, on_gpu):
    without = np.arange(59, 118)
    index = on_gpu(store, without=without)
    assert index.size == len(store) - 59
    assert not np.isin(index.search(queries(), 295)[1].numpy(), without).any()


def test_without_keys_faiss_searches(store, on_gpu, monkeypatch):
    monkeypatch.setattr(Datastore, "has_keys", False)
    assert isinstance(on_gpu(store), FaissIndex)


def test_an_index_does_not_keep_its_datastore(store, monkeypatch):
    monkeypatch.setattr(compact, "_BLOCK", 16)
    one = Datastore(store.folder)
    index, held = open_compact(one, CPU, int(2.5 * len(store) * DIM)), weakref.ref(one)
    assert index is not None
    assert index._keys.dtype == torch.int8
    del one
    gc.collect()
    assert held() is None
