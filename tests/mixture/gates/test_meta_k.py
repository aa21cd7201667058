"""`MetaKGate`: its features, its mixture, its training and its file, against lists and loops."""

import math

import numpy as np
import pytest
import torch
from gate_cases import (
    KS,
    neighbors_of,
    random_meta_k,
)

from knn_logits import (
    ConfigError,
    MetaKGate,
    fit_learned_gate,
)
from knn_logits.mixture.gates.gate import weigh_rows
from knn_logits.mixture.gates.meta_k import fit_meta_k_gate, meta_k_features
from knn_logits.mixture.gates.stored import gate_arrays
from knn_logits.mixture.weights import log_weights
from knn_logits.search.neighbors import Neighbors


def constant(shares, ks=KS, metric="l2"):
    """A gate that says the same of each row."""
    arrays = gate_arrays(random_meta_k(metric, ks))[0]
    arrays["out"] = np.zeros_like(arrays["out"])
    arrays["out_bias"] = np.log(np.array(shares, np.float32))
    return MetaKGate(metric, ks, arrays)


def test_by_hand():
    neighbors = neighbors_of([([5, 6, 7], [0.0, 8.0, 8.0], [1, 2, 1], None)])
    log_p_lm = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    # At temperature 8 the weights are as 1 to 1/e to 1/e.
    weights = log_weights(neighbors, 8.0)
    lmbda, votes = constant([0.5, 0.3, 0.2], (1, 3)).weigh(neighbors, weights, "l2", log_p_lm)
    e = math.exp(-1)
    assert lmbda.tolist() == pytest.approx([0.5])
    expected = [0.6 + 0.4 / (1 + 2 * e), 0.4 * e / (1 + 2 * e), 0.4 * e / (1 + 2 * e)]
    assert votes.exp()[0].tolist() == pytest.approx(expected)


def test_the_model_keeps_a_say():
    """However sure the network is, a token that no neighbor votes for stays possible."""
    gate = random_meta_k("l2", seed=3)
    arrays = gate.to_arrays() | {"out_bias": np.array([-200.0] + [200.0] * len(KS), np.float32)}
    arrays.pop("ks")
    sure = MetaKGate("l2", KS, arrays)
    neighbors = Neighbors.from_distances(
        torch.tensor([[0, 1]]), torch.tensor([[1.0, 2.0]]), torch.tensor([[3, 3]]), every_row=True
    )
    log_p_lm = torch.log_softmax(torch.zeros(1, 8), dim=-1)
    assert float(sure.lmbda(neighbors, "l2", log_p_lm)[0]) == pytest.approx(0.999)
    shares = sure.at(meta_k_features(neighbors, "l2", log_p_lm, KS)).exp()
    assert float(shares[0, 0]) == pytest.approx(0.001, rel=1e-3)
    assert float(shares.sum()) == pytest.approx(1.0, abs=1e-5)


def test_all_on_the_largest_set_is_a_number_as_lmbda():
    random = np.random.default_rng(0)
    rows = [
        ([1] * 16, random.random(16).tolist(), random.integers(0, 5, 16).tolist(), None)
        for _ in range(3)
    ]
    neighbors = neighbors_of(rows)
    weights = log_weights(neighbors, 0.3)
    log_p_lm = torch.log_softmax(torch.from_numpy(random.normal(size=(3, 5))).float(), -1)
    gate = constant([0.7, 1e-30, 1e-30, 1e-30, 1e-30, 0.3])
    lmbda, votes = gate.weigh(neighbors, weights, "l2", log_p_lm)
    assert lmbda.tolist() == pytest.approx([0.3] * 3)
    torch.testing.assert_close(votes, weights)
    # Beyond the largest k nobody votes, and what is not there is not missed.
    few = constant([0.7, 0.3], (2,)).weigh(neighbors, weights, "l2", log_p_lm)[1]
    assert (few > -math.inf).sum(-1).tolist() == [2, 2, 2]
    many = constant([0.7, 0.3], (99,)).weigh(neighbors, weights, "l2", log_p_lm)[1]
    torch.testing.assert_close(many, weights)


def test_a_set_without_weight_leaves_its_share_to_the_others():
    neighbors = neighbors_of([([5, 6, 7], [0.0, 8.0, 9.0], [1, 2, 1], None)])
    log_p_lm = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    # Of several datastores one may have no share of the vote, and hold the nearest.
    weights = torch.log(torch.tensor([[0.0, 0.75, 0.25]]))
    _, votes = constant([0.5, 0.3, 0.2], (1, 3)).weigh(neighbors, weights, "l2", log_p_lm)
    torch.testing.assert_close(votes, weights)


def test_what_a_gate_of_ones_own_gives_is_checked():
    class Own:
        def lmbda(self, neighbors, metric, log_p_lm):
            return torch.zeros(neighbors.rows)

        def weigh(self, neighbors, log_weights, metric, log_p_lm):
            return self.answer

    neighbors = neighbors_of([([5, 6], [3.0, 8.0], [1, 2], None)])
    weights, log_p_lm = log_weights(neighbors, 10.0), torch.log(torch.full((1, 4), 0.25))
    own = Own()
    for answer, message in (
        ((torch.full((1,), 0.5), weights[:, :1]), r"weights of shape \(1, 2\), not \(1, 1\)"),
        ((torch.full((1,), 0.5), None), "not NoneType"),
        ((torch.full((2,), 0.5), weights), r"Own.weigh must return a tensor of shape \(1,\)"),
        ((torch.full((1,), 1.5), weights), "between 0 and 1"),
    ):
        own.answer = answer
        with pytest.raises(ConfigError, match=message):
            weigh_rows(own, neighbors, weights, "l2", log_p_lm)


def text_where_the_number_of_values_decides(count, seed=0):
    """Where the nearest few disagree, many neighbors are right; else the nearest one is."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 6 + 2 * len(KS)))
    few = rng.random(count) < 0.5
    features[:, -1] = np.where(few, 0.2, 1.4) + 0.1 * rng.normal(size=count)
    knn = np.log(np.full((count, len(KS)), 0.02))
    knn[few, 0], knn[~few, -1] = np.log(0.9), np.log(0.9)
    return features, KS, np.log(np.full(count, 0.05)), knn


def test_it_learns_which_set_to_trust():
    text = text_where_the_number_of_values_decides(3_000)
    gate = fit_meta_k_gate(*text, "l2", steps=300)
    features, _, lm, knn = text_where_the_number_of_values_decides(800, seed=1)
    shares = gate.at(torch.from_numpy(features).float()).double().numpy()
    log_p = np.logaddexp.reduce(shares + np.column_stack([lm, knn]), axis=1)
    assert log_p.mean() > np.log(0.8)
    # No single k does that, whatever λ.
    one_k = fit_learned_gate(text[0][:, :6], text[2], text[3][:, 0], "l2", steps=300)
    lmbda = one_k.at(torch.from_numpy(features[:, :6]).float()).double().numpy()
    other = np.log((1 - lmbda) * np.exp(lm) + lmbda * np.exp(knn[:, 0]))
    assert log_p.mean() > other.mean() + 0.5


def test_tokens_without_a_neighbor_or_a_vote_do_no_harm():
    features, ks, lm, knn = text_where_the_number_of_values_decides(200)
    features[:20, 0] = math.inf
    knn[20:60], knn[60:70, 0], lm[60:80] = -math.inf, -math.inf, -math.inf
    knn[80:90], lm[80:90] = -math.inf, -math.inf
    one, again, other = (
        fit_meta_k_gate(features, ks, lm, knn, "l2", steps=20, seed=seed).to_arrays()
        for seed in (1, 1, 2)
    )
    assert all(np.isfinite(array).all() for array in one.values())
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["hidden"], other["hidden"])
    features[:, 0] = math.inf
    with pytest.raises(ConfigError, match="no token has a neighbor"):
        fit_meta_k_gate(features, ks, lm, knn, "l2")
    with pytest.raises(ConfigError, match="features must have the shape"):
        fit_meta_k_gate(features[:, :3], ks, lm, knn, "l2")
    with pytest.raises(ConfigError, match="log_p_knn must have the shape"):
        fit_meta_k_gate(features, ks, lm, knn[:, :2], "l2")
