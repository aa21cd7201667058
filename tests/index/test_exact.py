import numpy as np
import pytest
import torch
from distances import all_distances, by_distance

from knn_logits.index.exact import ExactIndex
from knn_logits.metrics import COMPARISONS

METRICS = ["l2", "ip", "cosine"]


def vectors(rows, dim=16, seed=0):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("metric", "origin", "close", "same"),
    [*((metric, 0.0, (1e-5, 1e-5), 1.0) for metric in METRICS), ("l2", 1000.0, (2e-4, 1e-3), 0.98)],
)
@pytest.mark.parametrize("k", [1, 7, 200])
def test_neighbors_are_those_of_all_distances(metric, origin, close, same, k):
    """Distances far from the origin stay precise."""
    keys, queries = vectors(200) + origin, vectors(33, seed=1) + origin
    distances, ids = by_distance(ExactIndex(keys, metric), queries, k)
    expected = all_distances(queries, keys, metric)
    nearest = expected if metric == "l2" else -expected
    order = np.argsort(nearest, axis=-1, kind="stable")[:, :k]
    assert (ids.dtype, distances.dtype) == (torch.int64, torch.float32)
    assert (ids.numpy() == order).mean() >= same
    expected = np.take_along_axis(expected, order, -1)
    np.testing.assert_allclose(distances.numpy(), expected, *close)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_query_that_is_not_finite_finds_nothing(metric, broken):
    keys, queries = vectors(20), vectors(4, seed=1)
    index = ExactIndex(keys, metric)
    whole = by_distance(index, queries, 5)
    queries[1, 3] = broken
    distances, ids = by_distance(index, queries, 5)
    assert (ids[1] == -1).all()
    assert (distances[1] == (torch.inf if metric == "l2" else -torch.inf)).all()
    for row in (0, 2, 3):
        assert torch.equal(ids[row], whole[1][row])
        torch.testing.assert_close(distances[row], whole[0][row])


def test_a_zero_vector_has_the_cosine_0_with_everything():
    keys = torch.cat([torch.zeros(1, 16), vectors(3)])
    distances, ids = by_distance(ExactIndex(keys, "cosine"), torch.cat([keys[1:2], keys[:1]]), 4)
    assert float(distances[0][ids[0] == 0]) == 0.0
    assert distances[1].tolist() == [0.0] * 4


@pytest.mark.parametrize("metric", METRICS)
def test_autocast_of_the_caller_changes_nothing(metric):
    keys, queries = vectors(300, 64), vectors(20, 64, seed=1)
    index, comparison = ExactIndex(keys, metric), COMPARISONS[metric]
    some = keys[:160].reshape(20, 8, 64)
    expected, apart = index.search(queries, 20), comparison.pairwise(queries, some)
    with torch.autocast("cpu", torch.bfloat16):
        found, within = index.search(queries, 20), comparison.pairwise(queries, some)
    assert torch.equal(found[1], expected[1])
    assert found[0].dtype == within.dtype == torch.float32
    assert torch.equal(found[0], expected[0])
    assert torch.equal(within, apart)
