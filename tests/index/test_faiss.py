import numpy as np
import pytest
import torch
from distances import by_distance

from knn_logits.errors import ConfigError
from knn_logits.index import faiss_library
from knn_logits.index.faiss_library import FaissIndex, build_faiss, faiss_module, make_empty

faiss = faiss_module()
METRICS = ["l2", "ip", "cosine"]
DIM = 16


def test_codes_are_not_trained_to_be_compared_by_their_bits():
    """That takes nearly all the time of a training, and no search here reads it."""
    assert not make_empty("IVF4,PQ4x4", DIM, "l2").do_polysemous_training


@pytest.mark.parametrize("factory", ["IVF4,PQ4", "IVF16,PQ4"])
def test_training_on_few_keys_prints_nothing(factory, capfd):
    make_empty(factory, DIM, "l2").train(vectors(300).numpy())
    assert capfd.readouterr() == ("", "")


def vectors(rows, seed=0):
    return torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))


def build(factory, metric, rows=600, **settings):
    keys = vectors(rows).numpy()
    batches = [keys[: rows // 3], keys[rows // 3 :]]
    return build_faiss(factory, DIM, metric, keys[:300], batches, **settings)


def test_a_small_table_of_product_quantization_is_computed_and_changes_nothing(monkeypatch):
    fast = build("IVF16,PQ4", "l2")
    monkeypatch.setattr(faiss_library, "MAX_TABLE_BYTES", 0)
    plain = build("IVF16,PQ4", "l2")
    tables = [one.raw.precomputed_table.size() for one in (fast, plain)]
    assert tables == [16 * 4 * 256, 0]
    found, expected = (one.search(vectors(9, seed=1), 20) for one in (fast, plain))
    torch.testing.assert_close(found[0].sort().values, expected[0].sort().values)


def rows_of(distances, ids):
    """(id, distance) pairs of each row without its padding, in the order of the ids."""
    return [
        sorted((one, d) for one, d in zip(row_ids, row, strict=True) if one >= 0)
        for row_ids, row in zip(ids.tolist(), distances.tolist(), strict=True)
    ]


def assert_padded(distances, ids, metric):
    """Padding has the id -1, is infinitely far, and comes last."""
    assert ids.dtype == torch.int64
    assert distances.dtype == torch.float32
    assert distances.shape == ids.shape
    missing = ids < 0
    assert (ids[missing] == -1).all()
    assert (distances[missing] == (torch.inf if metric == "l2" else -torch.inf)).all()
    assert distances[~missing].isfinite().all()
    assert (missing.int().diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_query_that_is_not_finite_finds_nothing(metric, broken, ranged):
    index, queries = build("IVF16,Flat", metric), vectors(4, seed=1)
    index.nprobe = 2
    index._can_range = ranged
    whole = rows_of(*by_distance(index, queries, 200))
    queries[2, 5] = broken
    distances, ids = by_distance(index, queries, 200)
    assert_padded(distances, ids, metric)
    found = rows_of(distances, ids)
    assert found[2] == []
    assert found[:2] == whole[:2]
    assert found[3:] == whole[3:]
    distances, ids = by_distance(index, queries[2:3], 200)
    assert (ids == -1).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factory", ["IVF16,Flat", "IVF16,SQ8"])
@pytest.mark.parametrize("nprobe", [1, 4, 16])
def test_both_ways_of_searching_find_the_same(factory, metric, nprobe):
    index = build(factory, metric, rows=900)
    index.nprobe = nprobe
    assert index._can_range
    queries = vectors(6, seed=1)
    for k in (128, 200, 900):
        index._can_range = True
        ranged = by_distance(index, queries, k)
        index._can_range = False
        heap = by_distance(index, queries, k)
        assert_padded(*ranged, metric)
        assert_padded(*heap, metric)
        assert ranged[0].shape[1] <= heap[0].shape[1] <= k
        assert rows_of(*ranged) == rows_of(*heap)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factory", ["IVF16,PQ4", "IVF64,PQ4x4"])
@pytest.mark.parametrize("nprobe", [1, 5, 16])
@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("ranged", [False, True])
def test_many_queries_find_list_by_list_what_each_finds_alone(
    factory, metric, nprobe, clustered, ranged
):
    """With clustered keys some lists are empty, and each key is there four times."""
    keys = vectors(25, seed=3).repeat(24, 1) + (not clustered) * vectors(600)
    keys += 20.0 + 0.01 * vectors(150, seed=2).repeat(4, 1)
    index = build_faiss(factory, DIM, metric, keys.numpy(), [keys[:300].numpy()], threads=1)
    index.search(keys[:1], 1)
    index.add(keys[300:].numpy())
    index.remove(np.arange(0, 600, 7))
    index.nprobe = nprobe
    queries = 20.0 + vectors(1000, seed=1)
    queries[3, 2], queries[5, 1] = float("nan"), float("inf")
    for k in (1, 10, 150, 600):
        index._can_range = True
        distances, ids = by_distance(index, queries, k)
        assert_padded(distances, ids, metric)
        index._can_range = ranged
        alone = [by_distance(index, part, k) for part in queries[:20].split(1)]
        for found, expected in zip(rows_of(distances[:20], ids[:20]), alone, strict=True):
            found, expected = dict(found), dict(rows_of(*expected)[0])
            assert len(found) == len(expected)
            # Rounding decides between keys of different lists that are as near as the last.
            for one in found.keys() | expected.keys():
                last = max(expected.values()) if metric == "l2" else min(expected.values())
                pair = found.get(one, last), expected.get(one, last)
                assert pair[0] == pytest.approx(pair[1], rel=1e-5, abs=1e-3)


@pytest.mark.parametrize("rows", [1, 31, 32, 100])
@pytest.mark.parametrize("threads", [None, 1, 2, 3])
def test_a_search_leaves_the_number_of_threads_as_it_was(rows, threads):
    seen = []
    index = build("IVF16,Flat", "l2", threads=threads)

    class Spy:
        nprobe = 1

        @staticmethod
        def search_c(rows, queries, k, *rest):
            seen.append(faiss.omp_get_max_threads())
            return index.raw.search_c(rows, queries, k, *rest)

    spied = FaissIndex(index.raw, "l2", threads=threads)
    spied.raw = Spy
    before = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(4)
        spied.search(vectors(rows), 2)
        assert faiss.omp_get_max_threads() == 4
    finally:
        faiss.omp_set_num_threads(before)
    own = 1 if rows < 32 else 4
    assert seen == [threads or own]


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("nonsense", "try 'auto'"),
        ("IVF16,PQ5", "try 'auto'"),
        ("IVF512,Flat", "20 keys"),
        ("IVF16,PQ4", "20 keys"),
    ],
)
def test_an_unknown_index_and_too_few_keys_are_refused_in_one_line(factory, words):
    keys = vectors(20).numpy()
    with pytest.raises(ConfigError) as caught:
        build_faiss(factory, DIM, "l2", keys, [keys])
    text = str(caught.value)
    for part in (repr(factory), words, "exact"):
        assert part in text
    assert "\n" not in text
    assert "faiss::" not in text
