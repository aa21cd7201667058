"""`RescorerGate`: its weights and λ, and its file, against lists in float64."""

import math

import numpy as np
import pytest
import torch
from gate_cases import naive_rescored, neighbors_of, random_rescorer, rows_of_neighbors
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import (
    ConfidenceSkip,
    ConfigError,
    DamagedError,
    KNNLogitsProcessor,
    Neighbors,
    RescorerGate,
    load_gate,
    save_gate,
)
from knn_logits.mixture.distribution import mix
from knn_logits.mixture.gates.gate import Gate, weigh_rows
from knn_logits.mixture.gates.stored import gate_arrays, gate_from_arrays
from knn_logits.mixture.weights import log_weights


@given(
    rows_of_neighbors(),
    st.integers(0, 99),
    st.sampled_from([1, 6, 16, 64]),
    st.sampled_from([1.0, 10.0, 100.0]),
)
def test_the_formula(case, seed, k, temperature):
    metric, rows = case
    gate, neighbors = random_rescorer(metric, k, seed=seed), neighbors_of(rows, metric)
    log_p_lm = torch.tensor([row[3] for row in rows])
    weights = log_weights(neighbors, temperature)
    lmbda, votes = weigh_rows(gate, neighbors, weights, metric, log_p_lm)
    torch.testing.assert_close(lmbda, gate.lmbda(neighbors, metric, log_p_lm))
    assert votes.dtype == weights.dtype
    assert not bool(votes.isnan().any())
    mixed = mix(log_p_lm, votes, neighbors.values, lmbda)
    for number, row in enumerate(rows):
        share, expected = naive_rescored(gate, *row[:3], metric, row[3], temperature)
        assert float(lmbda[number]) == pytest.approx(share, abs=1e-5)
        np.testing.assert_allclose(votes[number].exp().numpy(), expected, atol=1e-5)
        p = [(1 - share) * math.exp(one) for one in row[3]]
        for value, vote in zip(row[2], expected, strict=True):
            p[value] += share * vote
        np.testing.assert_allclose(mixed[number].exp().numpy(), p, atol=2e-5)


@given(rows_of_neighbors(), st.integers(0, 19))
def test_the_order_of_the_neighbors_says_nothing(case, seed):
    metric, rows = case
    gate, neighbors = random_rescorer(metric, 8, seed=seed), neighbors_of(rows, metric)
    log_p_lm = torch.tensor([row[3] for row in rows])
    places = torch.from_numpy(np.random.default_rng(seed).permutation(neighbors.k))
    moved = neighbors.columns(places.expand(neighbors.rows, -1))
    weights = log_weights(neighbors, 10.0)
    one = weigh_rows(gate, neighbors, weights, metric, log_p_lm)
    other = weigh_rows(gate, moved, weights[:, places], metric, log_p_lm)
    torch.testing.assert_close(one[0], other[0])
    torch.testing.assert_close(one[1][:, places], other[1], equal_nan=True)


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


def test_within_a_gate_that_skips():
    inner = random_rescorer()
    assert isinstance(inner, Gate)
    gate = ConfidenceSkip(inner, 0.5)
    neighbors = neighbors_of(
        [([5, 6], [3.0, 8.0], [1, 2], None), ([-1, -1], [math.inf] * 2, [0, 0], None)]
    )
    log_p_lm = torch.log(torch.tensor([[0.5, 0.25, 0.25]] * 2))
    weights = log_weights(neighbors, 10.0)
    for one, other in zip(
        weigh_rows(gate, neighbors, weights, "l2", log_p_lm),
        weigh_rows(inner, neighbors, weights, "l2", log_p_lm),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    assert gate.kind == "rescorer, skips by confidence"


def test_a_gate_for_another_metric_is_refused(model, store):
    with pytest.raises(ConfigError, match="metric cosine"):
        random_rescorer("cosine").lmbda(Neighbors.nothing(1), "l2", torch.zeros(1, 3))
    with pytest.raises(ConfigError, match="fitted for the metric cosine"):
        KNNLogitsProcessor(model, store, lmbda=random_rescorer("cosine"))


def test_a_file_gives_the_gate_back(tmp_path):
    for gate in (random_rescorer("ip", 24), ConfidenceSkip(random_rescorer("ip", 24), 0.25)):
        save_gate(gate, tmp_path / "gate.safetensors")
        again = load_gate(tmp_path / "gate.safetensors")
        assert type(again) is type(gate)
        gate, again = getattr(gate, "inner", gate), getattr(again, "inner", again)
        assert (again.metric, again.k, again.ks) == ("ip", 24, (1, 2, 4, 8, 16, 24))
        for name, array in gate.to_arrays().items():
            np.testing.assert_array_equal(again.to_arrays()[name], array)


@pytest.mark.parametrize(
    "change",
    [
        {"k": np.array([8], np.float32)},
        {"k": np.array([0], np.float32)},
        {"k": np.array([16.5], np.float32)},
        {"k": np.array([1e9], np.float32)},
        {"k": np.array([math.nan], np.float32)},
        {"k": np.array([16, 16], np.float32)},
        {"k": np.zeros((), np.float32)},
        {"k": np.zeros(0, np.float32)},
        {"sharpness": np.zeros(1, np.float32)},
        {"sharpness": np.ones(2, np.float32)},
        {"near_scale": np.zeros(6, np.float32)},
        {"near_mean": np.full(6, math.nan, np.float32)},
        {"near_out": np.full(4, 1e19, np.float32)},
        {"near_out": np.zeros(3, np.float32)},
        {"near_row": np.zeros((4, 6), np.float32)},
        {"near_hidden": np.zeros((6, 4), np.float32)},
        {"near_bias": np.zeros(0, np.float32)},
        {"near_bias": np.zeros((), np.float32)},
        {"hidden": np.zeros((4, 6), np.float32)},
        {"out": np.zeros((1, 4), np.float32)},
    ],
)
def test_damaged_arrays_are_refused(change):
    arrays, metadata = gate_arrays(random_rescorer())
    with pytest.raises(DamagedError, match="refit it"):
        gate_from_arrays(arrays | change, metadata)


def test_missing_arrays_are_refused():
    arrays, metadata = gate_arrays(random_rescorer())
    for name in arrays:
        with pytest.raises(DamagedError, match="refit it"):
            gate_from_arrays({one: arrays[one] for one in arrays if one != name}, metadata)
