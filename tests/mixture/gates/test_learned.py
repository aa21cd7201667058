"""`LearnedGate`: its features, its formula, its training, and its file, against NumPy."""

import math

import numpy as np
import pytest
import torch
from gate_cases import naive_features, neighbors_of, random_learned, rows_of_neighbors
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import (
    ConfidenceSkip,
    ConfigError,
    DamagedError,
    LearnedGate,
    fit_distance_gate,
    fit_learned_gate,
    save_gate,
)
from knn_logits.mixture.gates.learned import FEATURES
from knn_logits.mixture.gates.stored import gate_arrays, gate_from_arrays


@given(rows_of_neighbors(), st.integers(0, 99))
def test_the_formula(case, seed):
    metric, rows = case
    gate = random_learned(metric, seed=seed)
    log_p_lm = torch.tensor([row[3] for row in rows])
    lmbda = gate.lmbda(neighbors_of(rows, metric), metric, log_p_lm)
    assert bool(((lmbda >= 0) & (lmbda <= 0.999)).all())
    one = {name: array.astype(np.float64) for name, array in gate.to_arrays().items()}
    for row, got in zip(rows, lmbda.tolist(), strict=True):
        read = np.array(naive_features(*row[:3], metric, row[3]))
        inside = np.tanh(one["hidden"] @ ((read - one["mean"]) / one["scale"]) + one["hidden_bias"])
        expected = 1 / (1 + np.exp(-(one["out"] @ inside + one["out_bias"][0])))
        assert got == pytest.approx(expected if max(row[0], default=-1) >= 0 else 0.0, abs=1e-3)


@pytest.mark.parametrize("name", ["mean", "hidden", "hidden_bias", "out", "out_bias", "scale"])
def test_numbers_whose_products_are_infinite_are_refused_at_once(name):
    arrays, metadata = gate_arrays(random_learned())
    with pytest.raises(DamagedError, match="1e\\+18 at most"):
        gate_from_arrays(arrays | {name: arrays[name] * 0 + 1e38}, metadata)


def test_no_features_make_it_say_what_is_no_number():
    limit = torch.finfo(torch.float32).max
    features = torch.tensor([[limit], [-limit], [0.0]]).expand(3, 6)
    arrays, metadata = gate_arrays(random_learned())
    tiny = {"scale": arrays["scale"] * 0 + 1e-38}
    for change in ({}, tiny, {"hidden": arrays["hidden"] * 1e17}, {"out": arrays["out"] * 1e17}):
        assert gate_from_arrays(arrays | change, metadata).at(features).isfinite().all()


def test_the_model_keeps_a_say():
    """However sure the network is: in float32 its sigmoid is 1, the model's share would be 0."""
    arrays = random_learned().to_arrays() | {"out_bias": np.array([500.0], np.float32)}
    assert LearnedGate("l2", arrays).at(torch.zeros(1, len(FEATURES))).tolist() == [
        pytest.approx(0.999)
    ]


def text_where_agreement_decides(count, seed=0):
    """Features of which the third alone says who is right; distances say nothing."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, len(FEATURES)))
    features[:, 2] = rng.uniform(size=count)
    good = features[:, 2] > 0.5
    return features, np.log(np.where(good, 0.1, 0.8)), np.log(np.where(good, 0.9, 0.05))


def test_it_learns_what_a_distance_cannot_tell():
    features, lm, knn = text_where_agreement_decides(4_000)
    gate = fit_learned_gate(features, lm, knn, "l2", steps=300)
    held_out, _, _ = text_where_agreement_decides(1_000, seed=1)
    lmbda = gate.at(torch.from_numpy(held_out).float()).numpy()
    clear = np.abs(held_out[:, 2] - 0.5) > 0.1
    assert ((lmbda > 0.5) == (held_out[:, 2] > 0.5))[clear].mean() > 0.99
    by_distance = fit_distance_gate(features[:, 0], lm, knn, "l2")
    assert float(by_distance.lmbdas.max() - by_distance.lmbdas.min()) < 0.5


def test_the_same_seed_gives_the_same_gate():
    text = text_where_agreement_decides(500)
    one, again, other = (
        fit_learned_gate(*text, "l2", steps=20, seed=seed).to_arrays() for seed in (1, 1, 2)
    )
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["hidden"], other["hidden"])


def test_tokens_without_a_neighbor_or_a_vote_do_no_harm():
    features, lm, knn = text_where_agreement_decides(200)
    features[:20, 0] = math.inf
    features[:, 4] = 1.5  # a feature that never changes
    knn[20:60], lm[60:80] = -math.inf, -math.inf
    knn[80:90], lm[80:90] = -math.inf, -math.inf
    for array in fit_learned_gate(features, lm, knn, "l2", steps=20).to_arrays().values():
        assert np.isfinite(array).all()
    features[:, 0] = math.inf
    with pytest.raises(ConfigError, match="no token has a neighbor"):
        fit_learned_gate(features, lm, knn, "l2")
    with pytest.raises(ConfigError, match="shape"):
        fit_learned_gate(features[:, :3], lm, knn, "l2")


def test_the_same_gate_is_the_same_bytes(tmp_path):
    gate, found = ConfidenceSkip(random_learned(), 0.9), set()
    for number in range(8):
        save_gate(gate, tmp_path / f"{number}.safetensors")
        found.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(found) == 1
