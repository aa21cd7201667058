"""Weights, mixtures and influences are those of the papers."""

import math
from dataclasses import replace

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from papers import cases, mixture, paper_mixture, paper_votes, paper_weights

from knn_logits.mixture.vote import (
    influences,
    log_p_knn_of,
    log_weights,
    mix,
    mix_row,
)


@given(cases())
def test_weights_are_those_of_the_papers(case):
    metric, neighbors, _, temperature, _ = case
    found = log_weights(neighbors, temperature).exp()
    for row in range(neighbors.rows):
        expected = paper_weights(
            neighbors.ids[row].tolist(), neighbors.distances[row].tolist(), metric, temperature
        )
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=2e-5, atol=1e-7)


@given(cases(), st.floats(0.01, 1e4), st.integers(0, 2**16 - 1))
def test_a_bonus_multiplies_a_weight(case, factor, chosen):
    _metric, neighbors, _, temperature, _ = case
    plain = log_weights(neighbors, temperature).double().exp()
    favoured = torch.tensor([bool(chosen >> i & 1) for i in range(neighbors.k)]).expand_as(plain)
    bonus = favoured.float() * math.log(factor)
    found = log_weights(neighbors, temperature, bonus).exp()
    expected = plain * bonus.double().exp()
    expected /= expected.sum(-1, keepdim=True).clamp(min=1e-300)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-3, atol=1e-6)


@given(cases())
def test_the_mixture_is_that_of_the_papers(case):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    found = mixture(neighbors, log_p_lm, metric, temperature, lmbda).exp()
    for row in range(neighbors.rows):
        ids, distances = neighbors.ids[row].tolist(), neighbors.distances[row].tolist()
        votes = paper_votes(
            paper_weights(ids, distances, metric, temperature), neighbors.values[row].tolist()
        )
        p_lm = np.exp(log_p_lm[row].double().numpy())
        expected = paper_mixture(p_lm, votes, lmbda)
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=5e-5, atol=1e-7)


@given(cases())
def test_lmbda_0_is_the_model_and_lmbda_1_is_the_vote(case):
    metric, neighbors, log_p_lm, temperature, _ = case
    zero = mixture(neighbors, log_p_lm, metric, temperature, 0.0)
    assert torch.equal(zero, log_p_lm)
    one = mixture(neighbors, log_p_lm, metric, temperature, 1.0)
    for row in range(neighbors.rows):
        if neighbors.mask[row].any():
            voted = set(neighbors.values[row][neighbors.mask[row]].tolist())
            finite = set(one[row].isfinite().nonzero().view(-1).tolist())
            assert finite <= voted
        else:
            assert torch.equal(one[row], log_p_lm[row])


@given(cases(), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_one_lmbda_a_row_is_that_lmbda_for_each_row(case, shares):
    metric, neighbors, log_p_lm, temperature, _ = case
    shares = torch.tensor(shares[: neighbors.rows])
    together = mixture(neighbors, log_p_lm, metric, temperature, shares)
    for row, share in enumerate(shares.tolist()):
        part = slice(row, row + 1)
        alone = mixture(neighbors[part], log_p_lm[part], metric, temperature, share)
        torch.testing.assert_close(together[part], alone, rtol=1e-5, atol=1e-6)


@given(cases(), st.data())
def test_influences_and_the_models_share_sum_to_1(case, data):
    _metric, neighbors, log_p_lm, temperature, lmbda = case
    neighbors = replace(neighbors, nearness=neighbors.nearness.double())
    log_p_lm = torch.log_softmax(log_p_lm.double(), dim=-1)
    weights = log_weights(neighbors, temperature)
    mixed = mix(log_p_lm, weights, neighbors.values, lmbda)
    rows = torch.arange(neighbors.rows)
    vocabulary = log_p_lm.shape[1]
    chosen = torch.tensor([data.draw(st.integers(0, vocabulary - 1)) for _ in rows])
    log_p = mixed[rows, chosen]
    assume(bool(log_p.isfinite().all()))
    share = lmbda * neighbors.mask.any(-1).double()
    parts = influences(weights, neighbors.values, chosen, log_p, share)
    rest = (log_p_lm[rows, chosen] + torch.log1p(-share) - log_p).exp()
    assert not parts.isnan().any()
    assert (parts >= 0).all()
    assert not parts[neighbors.values != chosen[:, None]].any()
    np.testing.assert_allclose((parts.sum(-1) + rest).numpy(), 1.0, atol=1e-6)


@given(cases())
def test_the_mixture_of_one_token_is_that_of_all(case):
    _metric, neighbors, log_p_lm, temperature, lmbda = case
    weights = log_weights(neighbors, temperature)
    mixed = mix(log_p_lm, weights, neighbors.values, lmbda)
    # In float64, since a float32 cannot tell 1 - lmbda from 0 where lmbda is nearly 1.
    share = torch.tensor(lmbda, dtype=torch.float64) * neighbors.mask.any(-1)
    for token in range(log_p_lm.shape[1]):
        chosen = torch.full((neighbors.rows,), token)
        log_p_knn = log_p_knn_of(weights.double(), neighbors.values, chosen)
        one = mix_row(log_p_lm[:, token].double(), log_p_knn, share)
        torch.testing.assert_close(one, mixed[:, token].double(), rtol=1e-5, atol=2e-6)
