"""`RescorerGate`: its weights and λ, and its file, against lists in float64."""

import math

import numpy as np
import pytest
import torch
from gate_cases import neighbors_of, random_rescorer

from knn_logits import (
    Neighbors,
    RescorerGate,
)
from knn_logits.mixture.gates.gate import weigh_rows
from knn_logits.mixture.weights import log_weights


def deaf(k=16, sharpness=1.0, metric="l2", **changed):
    """A gate that scores all neighbors alike."""
    arrays = random_rescorer(metric, k).to_arrays()
    arrays |= {"near_out": np.zeros(4), "sharpness": np.array([sharpness])}
    return RescorerGate(metric, k, arrays | changed)


def test_by_hand():
    neighbors = neighbors_of([([5, 6, 7], [0.0, 8.0, 16.0], [1, 2, 1], None)])
    log_p_lm = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    weights = log_weights(neighbors, 8.0)
    _, votes = deaf().weigh(neighbors, weights, "l2", log_p_lm)
    torch.testing.assert_close(votes, weights)
    # With sharpness 2 the weights are squared.
    _, votes = deaf(sharpness=2.0).weigh(neighbors, weights, "l2", log_p_lm)
    torch.testing.assert_close(votes, torch.log_softmax(2.0 * weights, -1))
    # Beyond the nearest k nobody votes.
    _, votes = deaf(k=2).weigh(neighbors, weights, "l2", log_p_lm)
    e = math.exp(-1)
    assert votes.exp()[0].tolist() == pytest.approx([1 / (1 + e), e / (1 + e), 0.0])


def test_a_neighbor_without_weight_gets_none():
    neighbors = neighbors_of([([5, 6, 7], [0.0, 8.0, 9.0], [1, 2, 1], None)])
    log_p_lm = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    # Of several datastores one may have no share of the vote, and hold the nearest.
    weights = torch.log(torch.tensor([[0.0, 0.75, 0.25]]))
    _, votes = random_rescorer().weigh(neighbors, weights, "l2", log_p_lm)
    assert float(votes[0, 0]) == -math.inf
    assert float(votes.exp().sum()) == pytest.approx(1.0)
    nothing = torch.full((1, 3), -math.inf)
    lmbda, votes = random_rescorer().weigh(neighbors, nothing, "l2", log_p_lm)
    assert bool((votes == -math.inf).all())
    assert bool(lmbda.isfinite().all())


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_extreme_distances_and_probabilities_stay_finite(metric):
    far = [3e38, 1e30, 0.0, 1e-30] if metric == "l2" else [-3e38, -1e30, 0.0, 3e38]
    neighbors = neighbors_of([([1, 2, 3, 4], far, [0, 1, 1, 0], None)])
    log_p_lm = torch.tensor([[-math.inf, 0.0]])
    weights = log_weights(neighbors, 1e-3)
    lmbda, votes = weigh_rows(random_rescorer(metric), neighbors, weights, metric, log_p_lm)
    assert bool(lmbda.isfinite().all())
    assert float(votes.exp().sum()) == pytest.approx(1.0)
    large = random_rescorer(metric).to_arrays()
    large = {name: np.where(one > 0, 1e18, -1e18) for name, one in large.items() if name != "k"}
    gate = RescorerGate(metric, 16, large | {name: np.ones_like(large[name]) for name in SCALES})
    lmbda, votes = weigh_rows(gate, neighbors, weights, metric, log_p_lm)
    assert bool(lmbda.isfinite().all())
    assert float(votes.exp().sum()) == pytest.approx(1.0)


SCALES = ("scale", "near_scale", "sharpness")


def test_the_model_keeps_a_say():
    sure = deaf(out=np.zeros(4), out_bias=np.array([200.0]))
    neighbors = neighbors_of([([0, 1], [1.0, 2.0], [3, 3], None)])
    log_p_lm = torch.log_softmax(torch.zeros(1, 8), dim=-1)
    assert float(sure.lmbda(neighbors, "l2", log_p_lm)[0]) == pytest.approx(0.999)
    none = Neighbors.nothing(1)
    lmbda, votes = weigh_rows(sure, none, none.distances, "l2", log_p_lm)
    assert (lmbda.tolist(), votes.shape) == ([0.0], (1, 0))
