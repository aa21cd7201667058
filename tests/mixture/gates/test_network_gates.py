"""What `LearnedGate`, `MetaKGate` and `RescorerGate` have in common, against lists and loops."""

import math

import numpy as np
import pytest
import torch
from gate_cases import (
    naive_features,
    naive_meta_k_features,
    naive_rescored,
    naive_vote,
    neighbors_of,
    random_learned,
    random_meta_k,
    random_rescorer,
    rows_of_neighbors,
)
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import (
    ConfidenceSkip,
    ConfigError,
    DamagedError,
    DistanceGate,
    KNNLogitsProcessor,
    gate_features,
    load_gate,
    save_gate,
)
from knn_logits.mixture.distribution import influences, log_p_knn_of, mix, mix_row
from knn_logits.mixture.gates.gate import Gate, weigh_rows
from knn_logits.mixture.gates.learned import FEATURES
from knn_logits.mixture.gates.meta_k import meta_k_features
from knn_logits.mixture.gates.stored import gate_arrays, gate_from_arrays
from knn_logits.mixture.weights import log_weights
from knn_logits.search.neighbors import Neighbors, powers_up_to

# The gates that weigh each neighbor, their plain re-derivation, and how close the two are.
WEIGHING = [
    pytest.param(
        lambda metric, k, seed: random_meta_k(metric, powers_up_to(k), seed=seed),
        naive_vote,
        1e-3,
        id="meta-k",
    ),
    pytest.param(
        lambda metric, k, seed: random_rescorer(metric, k, seed=seed),
        naive_rescored,
        1e-5,
        id="rescorer",
    ),
]
of_weighing_gates = pytest.mark.parametrize(("make", "naive", "tolerance"), WEIGHING)

MAKERS = {"learned": random_learned, "meta-k": random_meta_k, "rescorer": random_rescorer}
of_all_gates = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.mark.parametrize(
    ("features", "naive"),
    [
        (gate_features, naive_features),
        (lambda *given: meta_k_features(*given, (1, 2, 4, 8, 16)), naive_meta_k_features),
    ],
    ids=["learned", "meta-k"],
)
@given(rows_of_neighbors())
def test_features(features, naive, case):
    metric, rows = case
    log_p_lm = torch.tensor([row[3] for row in rows])
    got = features(neighbors_of(rows, metric), metric, log_p_lm)
    assert bool(got.isfinite().all())
    expected = [naive(*row[:3], metric, row[3]) for row in rows]
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-4)


@of_weighing_gates
@given(
    rows_of_neighbors(),
    st.integers(0, 99),
    st.sampled_from([1, 6, 16, 64]),
    st.sampled_from([1.0, 10.0, 100.0]),
)
def test_the_mixture(make, naive, tolerance, case, seed, k, temperature):
    metric, rows = case
    gate, neighbors = make(metric, k, seed), neighbors_of(rows, metric)
    log_p_lm = torch.tensor([row[3] for row in rows])
    weights = log_weights(neighbors, temperature)
    lmbda, votes = weigh_rows(gate, neighbors, weights, metric, log_p_lm)
    torch.testing.assert_close(lmbda, gate.lmbda(neighbors, metric, log_p_lm))
    assert votes.dtype == weights.dtype
    assert not bool(votes.isnan().any())
    mixed = mix(log_p_lm, votes, neighbors.values, lmbda)
    for number, row in enumerate(rows):
        share, expected = naive(gate, *row[:3], metric, row[3], temperature)
        assert float(lmbda[number]) == pytest.approx(share, abs=tolerance)
        np.testing.assert_allclose(votes[number].exp().numpy(), expected, atol=tolerance)
        if sum(expected):
            assert float(votes[number].exp().sum()) == pytest.approx(1.0, abs=1e-5)
        p = [(1 - share) * math.exp(one) for one in row[3]]
        for value, vote in zip(row[2], expected, strict=True):
            p[value] += share * vote
        np.testing.assert_allclose(mixed[number].exp().numpy(), p, atol=2 * tolerance)
        assert float(mixed[number].exp().sum()) == pytest.approx(1.0, abs=1e-5)


@of_weighing_gates
@given(rows_of_neighbors(), st.integers(0, 99))
def test_influences_sum_to_one(make, naive, tolerance, case, seed):
    metric, rows = case
    gate, neighbors = make(metric, 16, seed), neighbors_of(rows, metric)
    log_p_lm = torch.tensor([row[3] for row in rows])
    weights = log_weights(neighbors, 10.0)
    lmbda, votes = (one.double() for one in weigh_rows(gate, neighbors, weights, metric, log_p_lm))
    for token in range(log_p_lm.shape[1]):
        chosen = torch.full((len(rows),), token)
        own = log_p_lm[:, token].double()
        log_p = mix_row(own, log_p_knn_of(votes, neighbors.values, chosen), lmbda)
        found = influences(votes, neighbors.values, chosen, log_p, lmbda).sum(-1)
        rest = (1 - lmbda) * (own - log_p).exp()
        for total, p in zip((found + rest).tolist(), log_p.tolist(), strict=True):
            assert p == -math.inf or total == pytest.approx(1.0, abs=1e-6)


@of_weighing_gates
@given(rows_of_neighbors(), st.integers(0, 19))
def test_the_order_of_the_neighbors_says_nothing(make, naive, tolerance, case, seed):
    metric, rows = case
    gate, neighbors = make(metric, 8, seed), neighbors_of(rows, metric)
    log_p_lm = torch.tensor([row[3] for row in rows])
    places = torch.from_numpy(np.random.default_rng(seed).permutation(neighbors.k))
    moved = neighbors.columns(places.expand(neighbors.rows, -1))
    weights = log_weights(neighbors, 10.0)
    one = weigh_rows(gate, neighbors, weights, metric, log_p_lm)
    other = weigh_rows(gate, moved, weights[:, places], metric, log_p_lm)
    torch.testing.assert_close(one[0], other[0])
    torch.testing.assert_close(one[1][:, places], other[1], equal_nan=True)


@pytest.mark.parametrize("kind", ["meta-k", "rescorer"])
def test_within_a_gate_that_skips(kind):
    inner = MAKERS[kind]()
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
    assert gate.kind == f"{kind}, skips by confidence"


@of_all_gates
def test_a_gate_for_another_metric_is_refused(make, model, store):
    with pytest.raises(ConfigError, match="metric cosine"):
        make("cosine").lmbda(Neighbors.nothing(1), "l2", torch.zeros(1, 3))
    with pytest.raises(ConfigError, match="fitted for the metric cosine"):
        KNNLogitsProcessor(model, store, lmbda=make("cosine"))


@of_all_gates
def test_a_file_gives_the_gate_back(make, tmp_path):
    for gate in (make("ip"), ConfidenceSkip(make("ip"), 0.25)):
        save_gate(gate, tmp_path / "gate.safetensors")
        again = load_gate(tmp_path / "gate.safetensors")
        assert type(again) is type(gate)
        gate, again = getattr(gate, "inner", gate), getattr(again, "inner", again)
        assert type(again) is type(gate)
        for name in ("metric", "k", "ks"):
            assert getattr(again, name, None) == getattr(gate, name, None)
        for name, array in gate.to_arrays().items():
            np.testing.assert_array_equal(again.to_arrays()[name], array)


DAMAGED = {
    "learned": [
        {"mean": np.zeros(3)},
        {"scale": np.zeros(len(FEATURES))},
        {"hidden": np.zeros((2, len(FEATURES)))},
        {"out": np.array([1.0, math.nan, 1.0])},
        {"out_bias": np.zeros(2)},
        {"hidden_bias": np.zeros((3, 1))},
        {"hidden_bias": np.zeros(0)},
    ],
    "meta-k": [
        {"ks": np.array([1, 2, 4, 4, 8], np.float32)},
        {"ks": np.array([0, 2, 4, 8, 16], np.float32)},
        {"ks": np.array([1, 2, 4, 8, 16.5], np.float32)},
        {"ks": np.array([1, 2, 4, 8, math.inf], np.float32)},
        {"ks": np.array([1, 2, 4, 8], np.float32)},
        {"ks": np.array([[1, 2, 4, 8, 16]], np.float32)},
        {"ks": np.zeros(0, np.float32)},
        {"ks": np.arange(1, 200, dtype=np.float32)},
        {"out": np.zeros(4, np.float32)},
        {"out_bias": np.zeros(1, np.float32)},
        {"hidden": np.zeros((4, 6), np.float32)},
    ],
    "rescorer": [
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
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_arrays_are_refused(kind):
    arrays, metadata = gate_arrays(MAKERS[kind]())
    damaged = [arrays | change for change in DAMAGED[kind]]
    damaged += [{one: arrays[one] for one in arrays if one != name} for name in arrays]
    damaged.append(gate_arrays(DistanceGate("l2", [1.0], [0.5]))[0])
    for content in damaged:
        with pytest.raises(DamagedError, match="refit it"):
            gate_from_arrays(content, metadata)
