"""The lists that a graph finds are those that a comparison with all centroids finds."""

import math
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from forked import Fork

from knn_logits.index import coarse
from knn_logits.index.choice import choose_lists
from knn_logits.index.coarse import ListGraph
from knn_logits.index.faiss_backend import build_faiss
from knn_logits.index.faiss_library import assign, faiss_module, inverted_file, train_centroids

DIM, LISTS = 16, 32
FACTORIES = [
    "IVF32,Flat",
    "IVF32,SQ8",
    "IVF32,PQ4x4",
    "IVF32,RaBitQ",
    "PCA8,IVF32,SQ8",
    "OPQ4,IVF32,PQ4x4",
]


def keys_of(rows, dim=DIM, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


def build(factory, metric="l2"):
    keys = keys_of(2000)
    return build_faiss(factory, DIM, metric, keys, [keys], threads=1)


@pytest.fixture
def fewest(monkeypatch):
    """Sets the number of lists from which on there is a graph."""
    return lambda number: monkeypatch.setattr(coarse, "FEWEST_LISTS", number)


def searched(index, queries, k):
    distances, ids = index.search(queries, k)
    order = ids.argsort(dim=1)
    return distances.gather(1, order), ids.gather(1, order)


@pytest.mark.parametrize("nprobe", [1, 4, 200])
@pytest.mark.parametrize("k", [10, 200])
@pytest.mark.parametrize("factory", FACTORIES)
def test_a_search_finds_the_same_with_a_graph(factory, k, nprobe, fewest):
    queries = torch.from_numpy(keys_of(40, seed=1))
    found = {}
    for number in (LISTS, LISTS + 1):
        fewest(number)
        index = build(factory)
        index.nprobe = nprobe
        found[number] = searched(index, queries, k)
        assert (index._graph is not None) == (number == LISTS)
    torch.testing.assert_close(found[LISTS][1], found[LISTS + 1][1], rtol=0, atol=0)
    torch.testing.assert_close(*(found[one][0] for one in found), rtol=1e-6, atol=1e-6)


def test_removed_keys_are_not_found_with_a_graph(fewest):
    fewest(1)
    index = build("IVF32,Flat")
    index.nprobe = LISTS
    queries = torch.from_numpy(keys_of(40)[:5])
    assert index.search(queries, 1)[1][:, 0].tolist() == [0, 1, 2, 3, 4]
    index.remove(np.array([1, 3]))
    assert index.search(queries, 1)[1][[0, 2, 4], 0].tolist() == [0, 2, 4]
    assert not np.isin(index.search(queries, 500)[1].numpy(), [1, 3]).any()


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("k", [10, 200])
def test_a_query_that_is_not_finite_finds_nothing_with_a_graph(broken, k, fewest):
    fewest(1)
    index = build("IVF32,SQ8")
    index.nprobe = 4
    queries = torch.from_numpy(keys_of(3, seed=1))
    whole = index.search(queries, k)[1]
    queries[1, 5] = broken
    ids = index.search(queries, k)[1]
    assert (ids[1] == -1).all()
    for row in (0, 2):
        assert set(ids[row].tolist()) - {-1} == set(whole[row].tolist()) - {-1} != set()


@pytest.mark.parametrize(
    ("factory", "metric"),
    [("IVF32,SQ8", "ip"), ("IVF32,SQ8", "cosine"), ("IVF32,PQ4x4,RFlat", "l2"), ("Flat", "l2")],
)
def test_other_indexes_have_no_graph(factory, metric, fewest):
    fewest(1)
    index = build(factory, metric)
    assert index._graph is None
    assert (index.search(torch.from_numpy(keys_of(3)), 5)[1] >= 0).all()


def clustered(rows, seed):
    """Vectors in groups, as hidden states are."""
    groups = 4.0 * keys_of(60, 64)
    own = np.random.default_rng(seed)
    return groups[own.integers(0, len(groups), rows)] + keys_of(rows, 64, seed + 1)


@pytest.mark.parametrize(("nprobe", "found_at_least"), [(1, 0.98), (4, 0.98), (64, 0.99)])
def test_few_of_many_lists_are_missed(nprobe, found_at_least):
    centroids, queries = clustered(4096, 1), clustered(300, 3)
    plain = faiss_module().IndexFlatL2(64)
    plain.add(centroids)
    distances, lists = plain.search(queries, nprobe)
    found_distances, found = ListGraph(centroids).search(queries, nprobe)
    assert found.shape == lists.shape
    assert (np.diff(found_distances, axis=1) >= 0).all()
    shared = [len(set(one) & set(other)) for one, other in zip(found, lists, strict=True)]
    assert np.mean(shared) / nprobe >= found_at_least
    np.testing.assert_allclose(found_distances[:, 0].mean(), distances[:, 0].mean(), rtol=0.01)


def test_the_graph_is_the_same_each_time():
    centroids, queries = clustered(3000, 1), clustered(200, 3)
    first, again = (ListGraph(centroids).search(queries, 2) for _ in range(2))
    np.testing.assert_array_equal(first[1], again[1])
    np.testing.assert_array_equal(first[0], again[0])


def test_there_is_a_graph_from_2048_lists_up_to_the_most_of_a_build(monkeypatch):
    assert choose_lists(10**12) == coarse.MOST_LISTS
    monkeypatch.setattr(coarse, "MOST_LISTS", 3000)
    for lists, expected in ((2047, False), (2048, True), (3000, True), (3001, False)):
        index = faiss_module().index_factory(4, f"IVF{lists},SQ8")
        assert ListGraph.of(inverted_file(index)) is None  # it is not trained
        inverted_file(index).quantizer.add(keys_of(lists, 4))
        assert (ListGraph.of(inverted_file(index)) is not None) == expected


def all_calls(order):
    """Prints what every call of an index returns; imports FAISS's torch_utils at some time."""
    if order == "before":
        import_module("faiss.contrib.torch_utils")
    keys = np.random.default_rng(0).standard_normal((2500, 8), dtype=np.float32)
    queries, results = torch.from_numpy(keys[:40] + 0.01), []
    for factory, metric in [
        ("IVF2048,SQ8", "l2"),
        ("IVF2048,Flat", "cosine"),
        ("IVF64,PQ4x4", "l2"),
        ("IVF64,PQ4x4fs,RFlat", "l2"),
        ("Flat", "ip"),
        ("HNSW8", "l2"),
        ("OPQ4,IVF64,PQ4x4", "l2"),
    ]:
        few = keys[:400] if "OPQ" in factory else keys  # it trains for seconds
        index = build_faiss(factory, 8, metric, few, [few], threads=1)
        if order == "after":
            import_module("faiss.contrib.torch_utils")
        index.nprobe = 8
        for k in (10, 200):
            results += [part.double().sum().item() for part in index.search(queries, k)]
        if "PQ4x4fs" not in factory:
            results.append(index.reconstruct(np.arange(5)).double().sum().item())
        index.remove(np.arange(50))
        results.append(index.search(queries, 10)[1].sum().item())
    centroids = train_centroids(keys, 16, metric="l2", seed=0, threads=1)
    results.append(int(assign(centroids, keys, metric="l2", threads=1).sum()))
    print(results)


def test_torch_utils_of_faiss_change_no_result():
    def printed(order):
        with Fork(lambda: all_calls(order)) as done:
            out, errors = done.ended()
        assert done.returncode == 0, errors
        # FAISS warns of few keys on the standard output.
        return [line for line in out.splitlines() if line.startswith("[")]

    assert "faiss.contrib.torch_utils" not in sys.modules
    assert printed("before") == printed("after") == printed("never") != []
