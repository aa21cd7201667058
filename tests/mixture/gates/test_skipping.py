"""Gates that skip: what they read, what they leave out, and how they are fitted and kept."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import (
    ConfidenceSkip,
    ConfigError,
    DamagedError,
    DistanceGate,
    LearnedSkip,
    load_gate,
    save_gate,
)
from knn_logits.mixture.gates.fitted import best_lmbda
from knn_logits.mixture.gates.gate import Gate, gate_name, rows_to_search
from knn_logits.mixture.gates.skipping import fit_confidence_skip, fit_learned_skip, skip_features
from knn_logits.mixture.gates.stored import gate_arrays
from knn_logits.search.neighbors import Neighbors
from knn_logits.store.files import write_arrays

CURVE = DistanceGate("l2", [1.0, 9.0], [0.9, 0.1])


def log_p(rows=40, vocabulary=100, seed=0, sharpness=3.0):
    random = np.random.default_rng(seed)
    scores = random.standard_normal((rows, vocabulary)) * sharpness * random.random((rows, 1))
    return torch.log_softmax(torch.from_numpy(scores).float(), -1)


@pytest.mark.parametrize("vocabulary", [2, 5, 100])
def test_features_against_numpy(vocabulary):
    given_log_p = log_p(vocabulary=vocabulary)
    found = skip_features(given_log_p).numpy()
    for row, p in zip(found, given_log_p.double().exp().numpy(), strict=True):
        p = p / p.sum()
        order = np.sort(p)[::-1]
        expected = [
            np.log(order[0]),
            np.log(order[1]),
            np.log(order[:8].sum()),
            np.log(order[:64].sum()),
            -(p * np.log(p)).sum(),
            np.log((order[:64] ** 2).sum()),
        ]
        np.testing.assert_allclose(row, expected, atol=1e-4)


def test_forbidden_tokens_leave_the_features_finite():
    given_log_p = log_p()
    given_log_p[:, 5:] = -torch.inf
    given_log_p[0] = -torch.inf
    given_log_p[0, 3] = 0.0
    given_log_p = given_log_p.log_softmax(-1)
    assert bool(skip_features(given_log_p).isfinite().all())


@given(st.floats(0, 1), st.integers(0, 2**16))
def test_confidence_skips_the_surest(share, seed):
    given_log_p = log_p(rows=50, seed=seed)
    surest = given_log_p.amax(-1)
    gate = fit_confidence_skip(surest.numpy(), share, 0.4)
    searched = gate.searches(given_log_p)
    assert abs(float((~searched).float().mean()) - share) <= 2 / 50
    if searched.any() and not searched.all():
        assert float(surest[searched].max()) <= float(surest[~searched].min())


@given(st.floats(0, 1), st.integers(0, 2**16))
def test_a_learned_rule_skips_its_share(share, seed):
    given_log_p = log_p(rows=60, seed=seed)
    features = skip_features(given_log_p).numpy()
    gate = fit_learned_skip(features, features[:, 4], share, 0.4, steps=2, seed=seed)
    skipped = float((~gate.searches(given_log_p)).float().mean())
    assert share - 1e-6 <= skipped <= share + 2 / 60


def test_a_learned_rule_finds_what_is_to_be_won():
    given_log_p = log_p(rows=3000)
    features = skip_features(given_log_p).numpy()
    # The neighbors win where the model is undecided, whatever its likeliest token has.
    gains = np.where(features[:, 4] > np.median(features[:, 4]), 2.0, -0.5)
    gains += np.random.default_rng(1).standard_normal(3000)
    gate = fit_learned_skip(features, gains, 0.5, 0.4, steps=300)
    searched = gate.searches(given_log_p).numpy()
    assert np.mean(searched == (features[:, 4] > np.median(features[:, 4]))) > 0.95
    again = fit_learned_skip(features, gains, 0.5, 0.4, steps=300)
    for name, array in gate.skip_arrays().items():
        np.testing.assert_array_equal(array, again.skip_arrays()[name])


@given(st.integers(0, 2**16))
def test_the_best_number_is_the_best_of_many(seed):
    random = np.random.default_rng(seed)
    lm, knn = np.log(random.random(200)), np.log(random.random(200) ** 2)
    knn[random.random(200) < 0.3] = -np.inf

    def likelihood(weight):
        with np.errstate(divide="ignore"):
            return np.logaddexp(np.log1p(-weight) + lm, np.log(weight) + knn).sum()

    best = likelihood(best_lmbda(lm, knn))
    assert all(likelihood(weight) <= best + 1.0 for weight in np.linspace(0, 0.99, 100))


def neighbors(rows, far):
    ids = torch.zeros(rows, 1, dtype=torch.int64)
    return Neighbors.from_distances(ids, torch.full((rows, 1), far), ids, every_row=True)


def test_lambda_is_that_of_what_is_inside():
    given_log_p = log_p(rows=3)
    near = neighbors(3, 5.0)
    for inner, expected in ((0.3, 0.3), (CURVE, 0.5)):
        gate = ConfidenceSkip(inner, 0.5)
        assert isinstance(gate, Gate)
        assert gate.lmbda(near, "l2", given_log_p).tolist() == pytest.approx([expected] * 3)
        assert gate.metric == ("l2" if inner is CURVE else None)
    empty = near[:1].among(torch.tensor([False, True, False]))
    assert gate.lmbda(empty, "l2", given_log_p).tolist() == pytest.approx([0.0, 0.5, 0.0])
    assert gate_name(gate) == "distance, skips by confidence"
    assert gate_name(ConfidenceSkip(0.3, 0.5)) == "0.3, skips by confidence"


def test_gates_without_an_opinion_search_everywhere():
    assert rows_to_search(CURVE, log_p()) is None
    assert rows_to_search(None, log_p()) is None


def learned_skip(inner):
    features = skip_features(log_p()).numpy()
    return fit_learned_skip(features, features[:, 0], 0.3, inner, steps=3)


@pytest.mark.parametrize("inner", [0.3, CURVE], ids=["number", "distance"])
@pytest.mark.parametrize("kind", ["confidence", "learned"])
def test_saved_and_loaded(tmp_path, kind, inner):
    gate = ConfidenceSkip(inner, 0.3) if kind == "confidence" else learned_skip(inner)
    save_gate(gate, tmp_path / "g.safetensors")
    again = load_gate(tmp_path / "g.safetensors")
    assert type(again) is type(gate)
    assert gate_name(again) == gate_name(gate)
    given_log_p, near = log_p(), neighbors(40, 3.0)
    assert torch.equal(again.searches(given_log_p), gate.searches(given_log_p))
    assert torch.equal(again.lmbda(near, "l2", given_log_p), gate.lmbda(near, "l2", given_log_p))


def test_what_is_no_gate_is_refused(tmp_path):
    path = tmp_path / "g.safetensors"
    arrays, metadata = gate_arrays(learned_skip(CURVE))
    for changed, noted in (
        ({"skip.threshold": None}, {}),
        ({"skip.threshold": np.zeros(2, np.float32)}, {}),
        ({"skip.threshold": np.full(1, np.nan, np.float32)}, {}),
        ({"skip.hidden": np.zeros((3, 2), np.float32)}, {}),
        ({}, {"skip": "by chance"}),
        ({}, {"gate": "other"}),
        ({}, {"gate": "number", "skip": None}),
        ({}, {"gate": "number"}),  # that is not there
    ):
        some = {key: one for key, one in (arrays | changed).items() if one is not None}
        notes = {key: one for key, one in (metadata | noted).items() if one is not None}
        write_arrays(path, some, notes)
        with pytest.raises(DamagedError, match="is not a gate"):
            load_gate(path)


def test_mistakes():
    class Own:
        def lmbda(self, neighbors, metric, log_p_lm):
            return torch.zeros(len(log_p_lm))

    with pytest.raises(ConfigError, match="lmbda must lie"):
        ConfidenceSkip(1.5, 0.5)
    with pytest.raises(ConfigError, match="a probability"):
        ConfidenceSkip(0.5, 1.5)
    with pytest.raises(ConfigError, match="another skipping gate"):
        ConfidenceSkip(ConfidenceSkip(0.5, 0.5), 0.5)
    with pytest.raises(ConfigError, match="finite"):
        LearnedSkip(0.5, float("nan"), {})
    with pytest.raises(ConfigError, match="cannot be saved"):
        gate_arrays(ConfidenceSkip(Own(), 0.5))
    with pytest.raises(ConfigError, match="share of tokens"):
        fit_confidence_skip(np.zeros(3), 1.5, 0.5)
    with pytest.raises(ConfigError, match="must have the shape"):
        fit_learned_skip(np.zeros((3, 2)), np.zeros(3), 0.5, 0.5)
    with pytest.raises(ConfigError, match="a finite number for each"):
        fit_learned_skip(np.zeros((3, 6)), np.zeros(2), 0.5, 0.5)
