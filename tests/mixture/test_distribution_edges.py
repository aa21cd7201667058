"""Weights and mixtures at the edges: no neighbors, forbidden tokens, extreme numbers."""

import math

import numpy as np
import pytest
import torch
from distances import from_distances
from hypothesis import given
from hypothesis import strategies as st
from papers import (
    FAR,
    INF,
    cases,
    make,
    mixture,
    paper_mixture,
    paper_votes,
    paper_weights,
    same_bits,
)

from knn_logits.mixture.vote import Vote, Weighing, drop_impossible, influences, mix


@given(cases(forbidden=True))
def test_forbidden_tokens_stay_forbidden_and_their_vote_goes_to_the_others(case):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    found = mixture(neighbors, log_p_lm, metric, temperature, lmbda)
    assert not found.isnan().any()
    assert (found[log_p_lm == -INF] == -INF).all()
    np.testing.assert_allclose(found.double().exp().sum(-1).numpy(), 1.0, atol=1e-5)
    for row in range(neighbors.rows):
        ids, distances = neighbors.ids[row].tolist(), neighbors.distances[row].tolist()
        allowed = [
            one if log_p_lm[row, value] > -INF else -1
            for one, value in zip(ids, neighbors.values[row].tolist(), strict=True)
        ]
        votes = paper_votes(
            paper_weights(allowed, distances, metric, temperature), neighbors.values[row].tolist()
        )
        expected = paper_mixture(np.exp(log_p_lm[row].double().numpy()), votes, lmbda)
        np.testing.assert_allclose(found[row].exp().numpy(), expected, rtol=5e-4, atol=1e-6)
        if all(one < 0 for one in allowed):
            assert same_bits(found[row], log_p_lm[row])


@given(cases(forbidden=True), st.floats(-50, 50))
def test_scores_of_any_scale_become_those_of_the_mixture(case, scale):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    expected = mixture(neighbors, log_p_lm, metric, temperature, lmbda)
    weights = Weighing(temperature).log_weights(neighbors)
    votes = drop_impossible(weights, neighbors.values, log_p_lm)
    for share in (lmbda, torch.full((neighbors.rows,), lmbda)):
        # A replayed step has the mixture already.
        for known in (None, expected):
            scores = log_p_lm + scale
            found = Vote(neighbors, votes, share, log_p_lm, known).mixed_into(scores)
            assert found is scores
            torch.testing.assert_close(
                found.log_softmax(-1).exp(), expected.exp(), rtol=1e-3, atol=1e-5
            )
            assert (found[log_p_lm == -INF] == -INF).all()
            if lmbda < 1.0 and known is None:
                voted = torch.zeros_like(scores).scatter_(-1, neighbors.values, 1.0) > 0.0
                assert torch.equal(found[~voted], (log_p_lm + scale)[~voted])


def test_a_vote_of_vanishing_weight_counts_once_all_others_are_forbidden():
    neighbors = make([[0, 1]], [[0.0, 5000.0]], [[1, 2]])
    log_p_lm = torch.log_softmax(torch.tensor([[0.0, -INF, 0.0]]), dim=-1)
    found = mixture(neighbors, log_p_lm, "l2", 1.0, 0.5).exp()
    np.testing.assert_allclose(found.numpy(), [[0.25, 0.0, 0.75]], atol=1e-6)


@given(cases(), st.data())
def test_a_row_without_neighbors_is_exactly_the_models(case, data):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    row = data.draw(st.integers(0, neighbors.rows - 1))
    ids, distances = neighbors.ids.clone(), neighbors.distances.clone()
    ids[row], distances[row] = -1, FAR[metric]
    emptied = from_distances(ids, distances, neighbors.values, metric)
    for share in (lmbda, torch.full((neighbors.rows,), lmbda)):
        found = mixture(emptied, log_p_lm, metric, temperature, share)
        assert same_bits(found[row], log_p_lm[row])


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-30, 1.0, 1e46, 1e300])
@pytest.mark.parametrize(
    "distances",
    [[0.0, 0.0], [0.0, 1e-38], [1e38, 2e38], [3e38, 3e38], [1e5, 100000.0078125], [1e-45, 1.0]],
)
def test_extreme_distances_and_temperatures(metric, temperature, distances):
    neighbors = make([[0, 1]], [distances], [[0, 1]], metric=metric)
    found = Weighing(temperature).log_weights(neighbors)
    assert not found.isnan().any()
    assert float(found.exp().sum()) == pytest.approx(1.0, abs=1e-6)
    one, other = neighbors.distances[0].double().tolist()
    gap = (other - one) if metric == "l2" else (one - other)
    # A temperature beyond the normal floats acts as the nearest of them.
    tiny = torch.finfo(torch.float32).tiny
    expected = -np.logaddexp(0.0, -gap / min(max(temperature, tiny), 1 / tiny))
    assert float(found[0, 0].exp()) == pytest.approx(math.exp(expected), abs=1e-5)
    mixed = mix(torch.tensor([[0.5, 0.25, 0.25]]).log(), found, neighbors.values, 0.5)
    assert not mixed.isnan().any()
    assert float(mixed.exp().sum()) == pytest.approx(1.0, abs=1e-6)


def test_a_token_without_probability_owes_its_neighbors_nothing():
    """A processor behind this one may choose it."""
    token, nothing = torch.tensor([2]), torch.tensor([-INF])
    found = influences(nothing[None], token[None], token, nothing, torch.tensor([0.5]))
    assert found.tolist() == [[0.0]]
