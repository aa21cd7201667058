"""The search over keys of four, two or one bytes a number: the code is the same on every device."""

import numpy as np
import pytest
import torch
from distances import by_distance
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.errors import SearchError
from knn_logits.index import compact
from knn_logits.index.compact import CompactIndex, form_for
from knn_logits.index.exact import ExactIndex

METRICS = ["l2", "ip", "cosine"]
FORMS = ["float32", "whole", "bytes"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def states(rows, dim=48, seed=0):
    """float32 [rows, dim]: keys as a model has them, far from 0 and with a few large numbers."""
    random = torch.Generator().manual_seed(seed)
    found = torch.randn(rows, dim, generator=random) + 3 * torch.randn(dim, generator=random)
    found[:, :2] *= 12
    return found.half().float()


def make(keys, metric, form, device="cpu", **settings):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU")
    stored = keys.numpy()
    if form == "float32":
        settings["dtype"] = torch.float32
    if form == "bytes":
        settings["keys"] = lambda ids: stored[ids].astype(np.float16)
    return CompactIndex(
        lambda: iter(np.array_split(stored, 3)),
        len(keys),
        keys.shape[1],
        metric,
        device,
        **settings,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("form", FORMS)
def test_it_finds_what_the_exact_index_finds(form, metric, device, monkeypatch):
    monkeypatch.setattr(compact, "_BLOCK", 4096)
    keys, queries = states(2000), states(40, seed=1)
    expected = by_distance(ExactIndex(keys, metric), queries, 100)
    index = make(keys, metric, form, device)
    index.search(queries.to(device), 1)  # a search changes no key
    distances, ids = by_distance(index, queries.to(device), 100)
    torch.testing.assert_close(distances.cpu(), expected[0], rtol=1e-3, atol=2e-3)
    same = [
        len(set(one) & set(other)) / 100
        for one, other in zip(ids.tolist(), expected[1].tolist(), strict=True)
    ]
    assert np.mean(same) >= 0.999
    assert torch.equal(distances.cpu(), distances.cpu().sort(descending=metric != "l2").values)


@pytest.mark.parametrize(("size", "k"), [(4096, 3), (4500, 8), (4200, 40), (20, 40)])
def test_the_best_of_groups_are_the_best(size, k):
    scores = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    scores[:, -1] = 9.0  # after the last group
    values, places = compact.best(scores, k)
    expected = scores.topk(min(k, size)).indices.sort(dim=-1).values
    assert torch.equal(places, expected)
    assert torch.equal(values, scores.gather(1, expected))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("form", FORMS)
def test_removed_vectors_are_not_found_and_others_keep_their_ids(form, metric):
    keys, queries = states(300), states(9, seed=1)
    index, exact = make(keys, metric, form), ExactIndex(keys, metric)
    for gone in (np.arange(0, 300, 3), np.array([1, 298])):
        index.remove(gone)
        exact.remove(gone)
    assert index.size == exact.size == 198
    distances, ids = by_distance(index, queries, 400)
    expected = by_distance(exact, queries, 400)
    torch.testing.assert_close(distances, expected[0], rtol=1e-3, atol=2e-3)
    assert set(ids[0].tolist()) == set(expected[1][0].tolist())


@pytest.mark.parametrize("form", FORMS)
def test_queries_that_are_broken_empty_or_of_another_size(form):
    index = make(states(50), "l2", form)
    queries = states(3, seed=1)
    queries[1, 0], queries[2, 3] = float("nan"), float("inf")
    distances, ids = by_distance(index, queries, 5)
    assert (ids[1:] == -1).all()
    assert distances[1:].isinf().all()
    assert (ids[0] >= 0).all()
    assert index.search(queries[:0], 5)[0].shape == (0, 0)
    with pytest.raises(SearchError, match="pass queries"):
        index.search(torch.zeros(1, 3), 5)


@given(
    st.integers(1, 10**10), st.integers(1, 8192), st.sampled_from([2, 4]), st.integers(0, 10**12)
)
def test_a_form_is_chosen_that_fits(size, dim, itemsize, free):
    form = form_for(size, dim, itemsize, free)
    widths = {"whole": itemsize, "bytes": 1, None: 0}
    need = size * dim * widths[form]
    assert need <= free
    assert form != "bytes" or size * dim * itemsize > free / 4
    if form_for(size, dim, itemsize, free // 2) is not None:
        assert form is not None
