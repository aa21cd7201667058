"""`MetaKGate`: its features, its mixture, its training and its file, against lists and loops."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gate_cases import (
    KS,
    naive_meta_k_features,
    naive_vote,
    neighbors_of,
    random_meta_k,
    rows_of_neighbors,
)
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import KNNLogitsProcessor
from knn_logits.errors import ConfigError, DamagedError
from knn_logits.mixture.gates.gate import weigh_rows
from knn_logits.mixture.gates.meta_k import fit_meta_k_gate, meta_k_features
from knn_logits.mixture.presets import stored_gate
from knn_logits.mixture.vote import Weighing, mix
from knn_logits.search.neighbors import powers_up_to


@given(rows_of_neighbors())
def test_features(case):
    metric, rows = case
    log_p_lm = torch.tensor([row[3] for row in rows])
    got = meta_k_features(neighbors_of(rows, metric), metric, log_p_lm, KS)
    assert bool(got.isfinite().all())
    expected = [naive_meta_k_features(*row[:3], metric, row[3]) for row in rows]
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-4)


@given(
    rows_of_neighbors(),
    st.integers(0, 99),
    st.sampled_from([1, 6, 16, 64]),
    st.sampled_from([1.0, 10.0, 100.0]),
)
def test_the_mixture(case, seed, k, temperature):
    metric, rows = case
    gate, neighbors = random_meta_k(metric, powers_up_to(k), seed=seed), neighbors_of(rows, metric)
    log_p_lm = torch.tensor([row[3] for row in rows])
    weights = Weighing(temperature).log_weights(neighbors)
    lmbda, votes = weigh_rows(gate, neighbors, weights, metric, log_p_lm)
    torch.testing.assert_close(lmbda, gate.lmbda(neighbors, metric, log_p_lm))
    assert votes.dtype == weights.dtype
    assert not bool(votes.isnan().any())
    mixed = mix(log_p_lm, votes, neighbors.values, lmbda)
    for number, row in enumerate(rows):
        share, expected = naive_vote(gate, *row[:3], metric, row[3], temperature)
        assert float(lmbda[number]) == pytest.approx(share, abs=1e-3)
        np.testing.assert_allclose(votes[number].exp().numpy(), expected, atol=1e-3)
        if sum(expected):
            assert float(votes[number].exp().sum()) == pytest.approx(1.0, abs=1e-5)
        p = [(1 - share) * math.exp(one) for one in row[3]]
        for value, vote in zip(row[2], expected, strict=True):
            p[value] += share * vote
        np.testing.assert_allclose(mixed[number].exp().numpy(), p, atol=2e-3)
        assert float(mixed[number].exp().sum()) == pytest.approx(1.0, abs=1e-5)


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
    gate = fit_meta_k_gate(*text_where_the_number_of_values_decides(3_000), "l2")
    features, _, lm, knn = text_where_the_number_of_values_decides(800, seed=1)
    shares = gate.at(torch.from_numpy(features).float()).double().numpy()
    log_p = np.logaddexp.reduce(shares + np.column_stack([lm, knn]), axis=1)
    # No single k does that, whatever λ: 0.9 for one half of the tokens, and 0.05 for the other.
    assert log_p.mean() > np.log(0.8)


@pytest.mark.usefixtures("short_training")
def test_tokens_without_a_vote_do_no_harm():
    features, ks, lm, knn = text_where_the_number_of_values_decides(200)
    knn[20:60], knn[60:70, 0], lm[60:80] = -math.inf, -math.inf, -math.inf
    knn[80:90], lm[80:90] = -math.inf, -math.inf
    one, again, other = (
        fit_meta_k_gate(features, ks, lm, knn, "l2", seed).to_arrays() for seed in (1, 1, 2)
    )
    assert all(np.isfinite(array).all() for array in one.values())
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["hidden"], other["hidden"])
    with pytest.raises(ConfigError, match="no token has a neighbor"):
        fit_meta_k_gate(features[:0], ks, lm[:0], knn[:0], "l2")


def test_a_gate_for_another_metric_is_refused(model, store):
    with pytest.raises(ConfigError, match="fitted for the metric cosine"):
        KNNLogitsProcessor(model, store, lmbda=random_meta_k("cosine"))


def read(arrays, about, metric="l2"):
    manifest = SimpleNamespace(metric=metric)
    store = SimpleNamespace(gate_arrays=(arrays, about), manifest=manifest, folder="store")
    return stored_gate(store)


def test_arrays_give_the_gate_back():
    gate = random_meta_k("ip")
    again = read(gate.to_arrays(), gate.about, "ip")
    assert (again.metric, again.ks) == (gate.metric, gate.ks)
    for name, array in gate.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)


DAMAGED = [
    {"mean": np.zeros(3)},
    {"scale": np.zeros(6 + 2 * len(KS))},
    {"hidden_bias": np.zeros((4, 1))},
    {"hidden_bias": np.zeros(0)},
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
]


def test_damaged_arrays_are_refused():
    arrays, about = random_meta_k().to_arrays(), random_meta_k().about
    damaged = [(arrays | change, about) for change in DAMAGED]
    damaged += [({one: arrays[one] for one in arrays if one != name}, about) for name in arrays]
    damaged += [(arrays, about | change) for change in ({"gate": "other"}, {"metric": "cosine"})]
    damaged.append((arrays, {}))
    for content, notes in damaged:
        with pytest.raises(DamagedError, match="the gate of store cannot be used"):
            read(content, notes)
