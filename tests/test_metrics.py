import numpy as np
import pytest
import torch

from knn_logits.metrics import COMPARISONS, METRIC_OF_FAISS, METRICS, as_distance

QUERIES, KEYS = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0))


def plain(metric: str) -> torch.Tensor:
    """Compares each query with each key, row by row, in double precision."""
    queries, keys = QUERIES.double(), KEYS.double()
    if metric == "cosine":
        return torch.nn.functional.cosine_similarity(queries[:, None], keys, dim=-1)
    return queries @ keys.T if metric == "ip" else -torch.cdist(queries, keys).square()


@pytest.mark.parametrize("metric", METRICS)
def test_every_way_to_compare_agrees_with_the_definition(metric):
    comparison, expected = COMPARISONS[metric], plain(metric)
    queries, keys = comparison.prepared(QUERIES), comparison.prepared(KEYS)
    scores = comparison.scores(queries, keys, comparison.norms(keys))
    pairs = comparison.pairwise(QUERIES, KEYS.expand(len(QUERIES), -1, -1))
    rows = [comparison.of_query(query, KEYS.clone().numpy()) for query in queries.numpy()]
    apart = torch.from_numpy(np.stack(rows))
    for nearness in (comparison.of_scores(scores, queries), pairs, apart):
        assert torch.allclose(nearness.double(), expected, atol=1e-5)
    to_itself = comparison.pairwise(QUERIES, QUERIES.unsqueeze(1))[:, 0]
    if comparison.perfect is not None:
        assert torch.allclose(to_itself, torch.full_like(to_itself, comparison.perfect))


@pytest.mark.parametrize("metric", METRICS)
def test_faiss_compares_prepared_vectors_likewise(metric):
    faiss = pytest.importorskip("faiss")
    comparison = COMPARISONS[metric]
    index = faiss.IndexFlat(KEYS.shape[1], comparison.faiss)
    index.add(comparison.prepared(KEYS).numpy())
    distances, ids = index.search(comparison.prepared(QUERIES).numpy(), len(KEYS))
    nearness = as_distance(torch.from_numpy(distances), metric)
    assert torch.allclose(nearness.double(), plain(metric).gather(1, torch.from_numpy(ids)))
    assert COMPARISONS[METRIC_OF_FAISS[comparison.faiss]].faiss == comparison.faiss


def test_a_zero_vector_stays_zero():
    assert np.array_equal(COMPARISONS["cosine"].prepared(torch.zeros(1, 3)), np.zeros((1, 3)))
