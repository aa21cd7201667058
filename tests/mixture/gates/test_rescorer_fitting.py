"""Fitting a `RescorerGate`: what is kept of the neighbors, and what is learnt from them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gate_cases import naive_rescored, neighbors_of, random_rescorer, rows_of_neighbors
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import ConfigError, Neighbors
from knn_logits.mixture.gates.fitted import GateTokens
from knn_logits.mixture.gates.gate import weigh_rows
from knn_logits.mixture.gates.meta_k import meta_k_features
from knn_logits.mixture.gates.rescorer import fit_rescorer
from knn_logits.mixture.gates.rescorer_fitting import NeighborhoodSample
from knn_logits.mixture.weights import Weighing, log_weights

K, KS = 8, (1, 2, 4, 8)


def rescored(gate, neighborhoods, features, lm, temperature):
    nothing = np.zeros(len(lm))
    tokens = GateTokens(
        features, nothing, None, lm, nothing, nothing, nothing, KS, temperature, 0.5, neighborhoods
    )
    return gate.log_p(tokens)


@given(rows_of_neighbors(), st.integers(0, 99), st.sampled_from([1.0, 20.0]))
def test_a_kept_token_has_the_probability_that_the_gate_gives(case, seed, temperature):
    metric, rows = case
    gate, neighbors = random_rescorer(metric, K, seed=seed), neighbors_of(rows, metric)
    log_p_lm = torch.tensor([row[3] for row in rows])
    targets = torch.from_numpy(
        np.random.default_rng(seed).integers(0, log_p_lm.shape[1], len(rows))
    )
    sample = NeighborhoodSample(K, metric, Weighing(1.0))
    sample.add(neighbors, targets, log_p_lm)
    features = meta_k_features(neighbors, metric, log_p_lm, gate.ks).numpy()
    lm = log_p_lm.gather(-1, targets[:, None])[:, 0].double().numpy()
    found = rescored(gate, sample.taken()[1], features, lm, temperature)
    for number, row in enumerate(rows):
        target = int(targets[number])
        lmbda, weights = naive_rescored(gate, *row[:3], metric, row[3], temperature)
        knn = sum(weight for weight, value in zip(weights, row[2], strict=True) if value == target)
        p = lmbda * knn + (1 - lmbda) * math.exp(row[3][target])
        assert math.exp(found[number]) == pytest.approx(p, abs=2e-5)


def test_what_is_kept_has_the_weights_of_the_search():
    neighbors = neighbors_of(
        [
            ([5, 6, 7, 8], [9.0, 1.0, 4.0, 6.0], [1, 2, 1, 0], None),
            ([5, 6, -1, -1], [9.0, 1.0, math.inf, math.inf], [1, 2, 0, 0], None),
            ([-1] * 4, [math.inf] * 4, [0] * 4, None),
        ]
    )
    bonus = torch.tensor([[0.0, 3.0, 0.0, 1.0], [2.0, 0.0, 0.0, 0.0], [0.0] * 4])
    neighbors = replace(neighbors, log_counts=bonus)
    log_p_lm = torch.log_softmax(torch.arange(9.0).reshape(3, 3), -1)
    sample = NeighborhoodSample(3, "l2", Weighing(1.0))
    sample.add(neighbors, torch.tensor([1, 0, 2]), log_p_lm)
    # A later search without any neighbor, and one without a bonus.
    sample.add(Neighbors.nothing(1), torch.tensor([1]), log_p_lm[:1])
    sample.add(replace(neighbors[:1], log_counts=None), torch.tensor([0]), log_p_lm[:1])
    tokens, kept = sample.taken()
    assert tokens.tolist() == [0, 1, 2, 3, 4]
    near = kept.near("l2", 2.0)
    whole = log_weights(neighbors, 2.0, neighbors.log_counts)
    nearest = torch.log_softmax(whole[0, [1, 2, 3]], -1)
    torch.testing.assert_close(near.log_weights[0], nearest)
    torch.testing.assert_close(near.log_weights[1, :2], whole[1, [1, 0]])
    assert near.present.sum(-1).tolist() == [3, 2, 0, 0, 3]
    assert near.nearness[0].tolist() == [-1.0, -4.0, -6.0]
    assert kept.votes().tolist() == [
        [False, True, False],
        [False] * 3,
        [False] * 3,
        [False] * 3,
        [False, False, True],
    ]


def test_memory_has_a_limit_and_each_token_the_same_chance():
    times = np.zeros(40)
    for seed in range(200):
        sample = NeighborhoodSample(2, "l2", Weighing(1.0), seed, most_bytes=200)
        for first in range(0, 40, 8):
            # The distance says which token it is.
            far = torch.arange(first, first + 8).float()[:, None].expand(-1, 2)
            neighbors = Neighbors.from_distances(
                torch.ones(8, 2).long(), far, torch.zeros(8, 2).long()
            )
            sample.add(neighbors, torch.zeros(8).long(), torch.zeros(8, 1))
        tokens, kept = sample.taken()
        assert len(tokens) == len(kept) == 10
        assert (-kept.nearness[:, 0]).tolist() == tokens.tolist()
        assert len(set(tokens.tolist())) == 10
        times[tokens] += 1
    # 50 times each, with a standard deviation of 6.
    assert times.min() > 25
    assert times.max() < 75


def text_where_the_far_ones_are_right(count, seed=0):
    """Of each token's eight neighbors the nearest four are wrong, and agree with the model."""
    rng = np.random.default_rng(seed)
    right = rng.integers(2, 6, count)
    values = np.concatenate(
        [np.tile(rng.integers(0, 2, (count, 1)), 4), np.tile(right, (4, 1)).T], 1
    )
    distances = np.sort(rng.uniform(10, 14, (count, 8)).astype(np.float32), axis=1)
    scores = np.zeros((count, 6), np.float32)
    scores[:, :2] = 4.0
    log_p_lm = torch.log_softmax(torch.from_numpy(scores), -1)
    neighbors = Neighbors.from_distances(
        torch.ones(count, 8).long(), torch.from_numpy(distances), torch.from_numpy(values)
    )
    targets = torch.from_numpy(np.where(rng.random(count) < 0.95, right, 0))
    sample = NeighborhoodSample(K, "l2", Weighing(1.0))
    sample.add(neighbors, targets, log_p_lm)
    features = meta_k_features(neighbors, "l2", log_p_lm, KS).numpy()
    lm = log_p_lm.gather(-1, targets[:, None])[:, 0].double().numpy()
    return (sample.taken()[1], features, lm), (neighbors, log_p_lm, targets)


SETTINGS = {"temperature": 2.0, "lmbda": 0.5}


def test_it_learns_which_neighbors_to_trust():
    text, _ = text_where_the_far_ones_are_right(1500)
    told = []
    gate = fit_rescorer(
        *text, "l2", **SETTINGS, steps=200, decay=0.03, progress=lambda *one: told.append(one)
    )
    assert told[0] == ("gate", 0, 200)
    assert told[-1] == ("gate", 200, 200)
    other, (neighbors, log_p_lm, targets) = text_where_the_far_ones_are_right(400, seed=1)
    found = rescored(gate, *other, 2.0)
    assert found.mean() > np.log(0.6)
    # With the weights of the distances no λ does that.
    weights = log_weights(neighbors, 2.0, neighbors.log_counts)
    best = max(
        np.log(lmbda * votes + (1 - lmbda) * np.exp(other[2])).mean()
        for votes in [(weights.exp() * (neighbors.values == targets[:, None])).sum(-1).numpy()]
        for lmbda in np.linspace(0.05, 0.95, 19)
    )
    assert found.mean() > best + 0.5
    lmbda, votes = weigh_rows(gate, neighbors, weights, "l2", log_p_lm)
    said = (votes.exp() * (neighbors.values == targets[:, None])).sum(-1)
    p = lmbda * said + (1 - lmbda) * torch.from_numpy(other[2]).exp()
    np.testing.assert_allclose(p.log().numpy(), found, atol=1e-4)


def test_without_a_step_the_weights_are_those_of_the_distances():
    text, (neighbors, log_p_lm, _) = text_where_the_far_ones_are_right(40)
    gate = fit_rescorer(*text, "l2", **SETTINGS, steps=0)
    weights = log_weights(neighbors, 2.0, neighbors.log_counts)
    lmbda, votes = weigh_rows(gate, neighbors, weights, "l2", log_p_lm)
    torch.testing.assert_close(votes, weights)
    assert lmbda.tolist() == pytest.approx([0.5] * 40)


def test_tokens_without_a_neighbor_or_a_vote_do_no_harm():
    (kept, features, lm), _ = text_where_the_far_ones_are_right(200)
    kept.groups[:20], kept.nearness[:20], kept.targets[:20] = -1, -math.inf, -1
    kept.targets[20:60], lm[60:80], lm[50:60] = -1, -math.inf, -math.inf
    one, again, other = (
        fit_rescorer(kept, features, lm, "l2", **SETTINGS, steps=20, seed=seed).to_arrays()
        for seed in (1, 1, 2)
    )
    assert all(np.isfinite(array).all() for array in one.values())
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["near_hidden"], other["near_hidden"])


def test_what_cannot_be_fitted_is_refused():
    (kept, features, lm), _ = text_where_the_far_ones_are_right(30)
    for changed, message in (
        ((kept, features[:9], lm), "one row per token"),
        ((kept, features, lm[:9]), "one row per token"),
        ((kept, features[:, :9], lm), r"must have the shape"),
        ((kept, features * math.nan, lm), "contain NaN"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit_rescorer(*changed, "l2", **SETTINGS, steps=1)
    kept.groups[:] = -1
    with pytest.raises(ConfigError, match="no token has a neighbor"):
        fit_rescorer(kept, features, lm, "l2", **SETTINGS)


def test_a_training_can_be_interrupted():
    text, _ = text_where_the_far_ones_are_right(30)

    def stop(phase, done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_rescorer(*text, "l2", **SETTINGS, progress=stop)
