"""`DistanceGate`: its curve, its fit, and its file, against NumPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from knn_logits import ConfigError, DamagedError, DistanceGate, fit_distance_gate
from knn_logits.mixture.gates.gate import split_lmbda, weigh_rows
from knn_logits.mixture.gates.stored import gate_arrays, gate_from_arrays, load_gate, save_gate
from knn_logits.search.neighbors import Neighbors, nearest_nearness

FAR = {"l2": math.inf, "ip": -math.inf, "cosine": -math.inf}
LM = torch.log_softmax(torch.zeros(3, 5), -1)


def rows_of(distances, ids=None, metric="l2"):
    distances = torch.tensor(distances)
    ids = torch.zeros(distances.shape, dtype=torch.int64) if ids is None else torch.tensor(ids)
    return Neighbors.from_distances(ids, distances, torch.zeros_like(ids), metric)


def lmbda_of(gate, neighbors):
    return weigh_rows(gate, neighbors, neighbors.nearness, "l2", LM)[0]


@st.composite
def curves(draw, bins=8):
    number = draw(st.integers(1, bins))
    middles = draw(st.lists(st.integers(-400, 400), min_size=number, max_size=number, unique=True))
    lmbdas = draw(arrays.arrays(np.float32, number, elements=st.floats(0, 1, width=32)))
    return np.sort(np.array(middles, np.float32)) / 8, lmbdas


@given(curves(), st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=20))
def test_the_curve_is_straight_between_middles_and_level_beyond(curve, distances):
    gate = DistanceGate("ip", *curve)
    got = gate.at(torch.tensor(distances, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(got, np.interp(distances, *curve), atol=1e-5)
    assert got.min() >= 0
    assert got.max() <= 1


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_the_nearest_neighbor_decides_wherever_it_stands(metric):
    far = FAR[metric]
    neighbors = rows_of([[2.0, 6.0, 4.0], [far, far, far], [4.0, far, far]], metric=metric)
    expected = [2.0, far, 4.0] if metric == "l2" else [6.0, far, 4.0]
    nearness = nearest_nearness(neighbors)
    assert (-nearness if metric == "l2" else nearness).tolist() == expected
    gate = DistanceGate(metric, [2.0, 4.0, 6.0], [0.25, 0.5, 0.75])
    lmbda = gate.lmbda(neighbors, metric, LM)
    assert lmbda.tolist() == [0.25 if metric == "l2" else 0.75, 0.0, 0.5]
    assert gate.lmbda(Neighbors.nothing(3), metric, LM).tolist() == [0.0, 0.0, 0.0]
    assert gate.lmbda(rows_of([[1.0], [9.0]], metric=metric), metric, LM[:2]).tolist() == [
        0.25,
        0.75,
    ]


def test_a_gate_for_another_metric_is_refused():
    gate = DistanceGate("l2", [1.0], [0.5])
    with pytest.raises(ConfigError, match="fitted for the metric l2, but the datastore has cosine"):
        split_lmbda(gate, "cosine")
    with pytest.raises(ConfigError, match="fitted for the metric l2"):
        gate.lmbda(Neighbors.nothing(3), "ip", LM)
    assert split_lmbda(gate, "l2") == (None, gate)
    assert split_lmbda(0.3, "l2") == (0.3, None)
    assert split_lmbda(None, "l2") == (None, None)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (torch.tensor([0.5, math.nan, 0.5]), "between 0 and 1"),
        (torch.tensor([0.5, 1.01, 0.5]), "between 0 and 1"),
        (torch.tensor([0.5, -0.01, 0.5]), "between 0 and 1"),
        (torch.tensor([[0.5, 0.5, 0.5]]), "one value per row"),
        (0.5, "not float"),
    ],
)
def test_a_gate_that_answers_nonsense_is_refused(answer, message):
    class Own:
        def lmbda(self, neighbors, metric, log_p_lm):
            return answer

    with pytest.raises(ConfigError, match=message):
        lmbda_of(Own(), rows_of([[1.0]] * 3))


def test_any_gate_is_zero_where_there_is_no_neighbor():
    class Own:
        def lmbda(self, neighbors, metric, log_p_lm):
            return torch.full((3,), 0.5, dtype=torch.float64)

    neighbors = rows_of([[1.0, math.inf]] * 3, ids=[[4, -1], [-1, -1], [2, 7]])
    lmbda = lmbda_of(Own(), neighbors)
    assert lmbda.tolist() == [0.5, 0.0, 0.5]
    assert lmbda.dtype == torch.float32
    assert lmbda_of(Own(), Neighbors.nothing(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("middles", "lmbdas", "message"),
    [
        ([1.0, 2.0], [0.5], "same number"),
        ([2.0, 1.0], [0.5, 0.5], "ascending"),
        ([1.0, 1.0], [0.5, 0.5], "ascending"),
        ([1.0], [1.5], "between 0 and 1"),
        ([1.0], [math.nan], "finite"),
        ([math.inf], [0.5], "finite"),
        ([], [], "list of finite"),
        (["a"], [0.5], "numbers"),
        ([[1.0]], [[0.5]], "list of finite"),
    ],
)
def test_values_out_of_range_are_refused(middles, lmbdas, message):
    with pytest.raises(ConfigError, match=message):
        DistanceGate("l2", middles, lmbdas)


# The fit.


def likelihood(gate, nearest, lm, knn):
    lmbda = gate.at(torch.tensor(nearest, dtype=torch.float32)).double().numpy()
    with np.errstate(divide="ignore"):
        return np.logaddexp(lm + np.log1p(-lmbda), knn + np.log(lmbda)).sum()


def sample(count, curve, seed=0):
    """Distances, and probabilities of tokens drawn from a mixture whose λ follows a curve.

    The two distributions are over two tokens: (0.9, 0.1) by the model, (0.2, 0.8) by neighbors.
    """
    rng = np.random.default_rng(seed)
    nearest = rng.uniform(0, 10, count)
    by_knn = rng.random(count) < np.interp(nearest, *curve)
    second = rng.random(count) < np.where(by_knn, 0.8, 0.1)
    lm, knn = np.where(second, 0.1, 0.9), np.where(second, 0.8, 0.2)
    return nearest, np.log(lm), np.log(knn)


def test_the_fit_finds_the_curve_that_the_text_was_drawn_from():
    curve = ([0.0, 4.0, 10.0], [0.95, 0.5, 0.05])
    gate = fit_distance_gate(*sample(60_000, curve), "l2", bins=8)
    places = np.linspace(0.7, 9.3, 30)
    got = gate.at(torch.tensor(places, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(got, np.interp(places, *curve), atol=0.05)


def test_no_other_coefficients_are_likelier():
    nearest, lm, knn = sample(3_000, ([0.0, 10.0], [0.9, 0.1]), seed=1)
    gate = fit_distance_gate(nearest, lm, knn, "l2", bins=6, smoothing=1e-6)
    best = likelihood(gate, nearest, lm, knn)
    for place in range(6):
        for shift in (-0.02, 0.02):
            moved = gate.lmbdas.clone()
            moved[place] = (moved[place] + shift).clamp(0, 1)
            if not torch.equal(moved, gate.lmbdas):
                other = DistanceGate("l2", gate.middles, moved)
                assert likelihood(other, nearest, lm, knn) < best


def test_one_bin_is_the_best_constant():
    nearest, lm, knn = sample(2_000, ([0.0, 10.0], [0.5, 0.3]), seed=2)
    gate = fit_distance_gate(nearest, lm, knn, "ip", bins=1)
    grid = np.linspace(0.001, 0.999, 999)
    scores = [np.logaddexp(lm + np.log1p(-x), knn + np.log(x)).sum() for x in grid]
    assert float(gate.lmbdas[0]) == pytest.approx(grid[int(np.argmax(scores))], abs=2e-3)


def test_little_data_stays_near_the_whole():
    nearest, lm, knn = sample(200, ([0.0, 10.0], [1.0, 0.0]), seed=3)
    steep = fit_distance_gate(nearest, lm, knn, "l2", smoothing=0.1).lmbdas
    level = fit_distance_gate(nearest, lm, knn, "l2", smoothing=1e5).lmbdas
    assert len(steep) == 8  # 25 tokens a bin
    assert float(level.max() - level.min()) < 0.01 < float(steep.max() - steep.min())


@given(
    st.lists(
        st.tuples(
            st.one_of(st.floats(0, 1e4), st.just(math.inf)),
            st.floats(-700, 0),
            st.one_of(st.floats(-700, 0), st.just(-math.inf)),
        ),
        min_size=1,
        max_size=120,
    )
)
def test_a_fit_is_a_gate_whatever_the_text(tokens):
    nearest, lm, knn = np.array(tokens).T
    if not np.isfinite(nearest).any():
        with pytest.raises(ConfigError, match="no token has a neighbor"):
            fit_distance_gate(nearest, lm, knn, "l2")
        return
    gate = fit_distance_gate(nearest, lm, knn, "l2")
    lmbda = gate.lmbda(rows_of(nearest.astype(np.float32)[:, None]), "l2", LM)
    assert bool(((lmbda >= 0) & (lmbda <= 1)).all())
    assert bool((lmbda[torch.tensor(nearest).isinf()] == 0).all())


def test_equal_distances_make_one_bin():
    gate = fit_distance_gate(np.ones(500), np.full(500, -1.0), np.full(500, -2.0), "l2")
    assert gate.middles.tolist() == [1.0]
    assert float(gate.lmbdas[0]) < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nearest": np.ones(3)}, "one value per token"),
        ({"log_p_lm": np.full(4, math.nan)}, "NaN"),
        ({"bins": 0}, "at least 1"),
        ({"smoothing": 0.0}, "above 0"),
        ({"nearest": np.full(4, math.inf)}, "no token"),
    ],
)
def test_arrays_that_cannot_be_fitted_are_refused(change, message):
    given = {"nearest": np.ones(4), "log_p_lm": np.full(4, -1.0), "log_p_knn": np.full(4, -1.0)}
    with pytest.raises(ConfigError, match=message):
        fit_distance_gate(**(given | {"metric": "l2"} | change))


# The file.


@given(curves(), st.sampled_from(["l2", "ip", "cosine"]))
def test_arrays_give_the_gate_back(curve, metric):
    gate = DistanceGate(metric, *curve)
    again = gate_from_arrays(*gate_arrays(gate))
    assert isinstance(again, DistanceGate)
    assert again.metric == metric
    assert torch.equal(again.middles, gate.middles)
    assert torch.equal(again.lmbdas, gate.lmbdas)


def test_a_file_gives_the_gate_back(tmp_path):
    gate = DistanceGate("cosine", [0.5, 0.9], [0.1, 0.8])
    save_gate(gate, tmp_path / "gate.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["gate.safetensors"]
    assert torch.equal(load_gate(tmp_path / "gate.safetensors").lmbdas, gate.lmbdas)


@pytest.mark.parametrize(
    ("arrays_change", "metadata_change"),
    [
        ({}, {"gate": "other"}),
        ({}, {"version": "2"}),
        ({}, {"metric": "hamming"}),
        ({"lmbdas": np.array([2.0, 0.1], np.float32)}, {}),
        ({"middles": np.array([[0.5, 0.9]], np.float32)}, {}),
        ({"middles": np.array([0.9, 0.5], np.float32)}, {}),
        ({"middles": np.array([0.5, np.nan], np.float32)}, {}),
    ],
)
def test_damaged_arrays_are_refused(arrays_change, metadata_change):
    good, metadata = gate_arrays(DistanceGate("cosine", [0.5, 0.9], [0.1, 0.8]))
    with pytest.raises(DamagedError, match="refit it"):
        gate_from_arrays(good | arrays_change, metadata | metadata_change)


def test_a_file_that_is_no_gate_is_refused(tmp_path):
    good, metadata = gate_arrays(DistanceGate("l2", [0.5], [0.1]))
    with pytest.raises(DamagedError):
        gate_from_arrays({"middles": good["middles"]}, metadata)
    with pytest.raises(DamagedError, match=r"there is no such file\): use a file written by"):
        load_gate(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("text")
    with pytest.raises(DamagedError, match=r"not a \.safetensors file\): use a file written by"):
        load_gate(tmp_path / "text.safetensors")
