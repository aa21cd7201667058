"""Weights, mixtures and influences are those of the papers."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from papers import cases, mixture, paper_mixture, paper_votes, paper_weights

from knn_logits.mixture.vote import Weighing, influences, mix


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


@given(cases(), st.data())
def test_influences_and_the_models_share_sum_to_1(case, data):
    _metric, neighbors, log_p_lm, temperature, lmbda = case
    neighbors = replace(neighbors, nearness=neighbors.nearness.double())
    log_p_lm = torch.log_softmax(log_p_lm.double(), dim=-1)
    weights = Weighing(temperature).log_weights(neighbors)
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
