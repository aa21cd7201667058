"""Thousands of settings at once against each setting on its own."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from distances import from_distances
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.measure.likelihood import (
    Grid,
    GridLikelihood,
    p_knn_table,
    spread,
    temperatures_around,
)
from knn_logits.mixture.vote import Weighing


def make_neighbors(seed, rows, k, metric="l2", padded=True):
    """Random neighbors, the nearest first or not, with padding at the end of some rows."""
    random = np.random.default_rng(seed)
    distances = random.gamma(2.0, 30.0, (rows, k)).astype(np.float32)
    values = random.integers(0, 6, (rows, k))
    ids = random.integers(0, 1000, (rows, k))
    if padded:
        for row in range(rows):
            count = int(random.integers(0, k + 1))
            ids[row, count:] = -1
            distances[row, count:] = np.inf
    if metric != "l2":
        distances = -distances
    neighbors = from_distances(
        *(torch.from_numpy(array) for array in (ids, distances, values)), metric
    )
    targets = torch.from_numpy(random.integers(0, 6, rows))
    return neighbors, targets, torch.from_numpy(random.uniform(-12, 0, rows).astype(np.float32))


def naive_p_knn(neighbors, targets, row, k, temperature, metric):
    """float64, one row, one setting."""
    real = neighbors.ids[row].numpy() >= 0
    distances = neighbors.distances[row].double().numpy()[real]
    nearness = -distances if metric == "l2" else distances
    values = neighbors.values[row].numpy()[real]
    order = np.argsort(-nearness, kind="stable")[:k]
    if not len(order):
        return None
    weights = np.exp((nearness[order] - nearness.max()) / temperature)
    if neighbors.shared is not None:
        weights *= SUFFIX_WEIGHT ** neighbors.shared[row].double().numpy()[real][order]
    return weights[values[order] == int(targets[row])].sum() / weights.sum()


SUFFIX_WEIGHT = 1.3
settings = st.tuples(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 40))


@given(settings, st.sampled_from(["l2", "ip"]), st.booleans(), st.booleans())
def test_each_setting_is_what_it_is_on_its_own(shape, metric, halving, counted):
    neighbors, targets, log_p_lm = make_neighbors(*shape, metric)
    if counted:
        shared = np.random.default_rng(shape[0]).integers(0, 9, neighbors.ids.shape)
        neighbors = dataclasses.replace(neighbors, shared=torch.from_numpy(shared).float())
    weighing = Weighing(1.0, suffix_weight=SUFFIX_WEIGHT)
    temperatures = (2.5, 5.0, 10.0, 20.0, 40.0) if halving else (0.3, 7.0, 7.5)
    grid = Grid((1, 3, 16, 50), temperatures, (0.0, 0.3, 0.9))
    table = p_knn_table(neighbors, targets, grid, weighing.bonus(neighbors))
    found = GridLikelihood(grid, weighing)
    found.add(neighbors, targets, log_p_lm)
    for i, k in enumerate(grid.ks):
        for j, temperature in enumerate(temperatures):
            own = [
                naive_p_knn(neighbors, targets, row, k, temperature, metric)
                for row in range(neighbors.rows)
            ]
            expected = [p or 0.0 for p in own]
            np.testing.assert_allclose(table[:, i, j].numpy(), expected, atol=2e-5)
            for number, lmbda in enumerate(grid.lmbdas):
                total = sum(
                    math.log(lmbda * p + (1 - lmbda) * math.exp(lm)) if p is not None else lm
                    for p, lm in zip(own, log_p_lm.double().tolist(), strict=True)
                )
                assert float(found.sums[i, j, number]) == pytest.approx(total, abs=3e-4)
    assert found.lm == pytest.approx(float(log_p_lm.double().sum()))
    assert found.tokens == neighbors.rows


def test_the_best_is_the_largest_likelihood_and_a_smaller_k_where_it_is_as_good():
    grid = Grid((4, 8, 16), (1.0, 2.0), (0.1, 0.5))
    found = GridLikelihood(grid)
    found.tokens = 10
    found.sums[:] = -30.0
    found.sums[2, 1, 0] = -20.0
    found.sums[1, 0, 1] = -20.01
    best = found.best()
    assert (best.k, best.temperature, best.lmbda, best.place) == (16, 2.0, 0.1, (2, 1, 0))
    assert best.perplexity == pytest.approx(math.exp(2))
    assert found.best(k_tolerance=0.002).place == (1, 0, 1)
    assert grid.settings == 12


def test_a_token_that_the_model_excludes_does_not_break_the_sums():
    neighbors, targets, _ = make_neighbors(1, 4, 8, padded=False)
    grid = Grid((8,), (10.0,), (0.0, 0.5))
    found = GridLikelihood(grid)
    found.add(neighbors, targets, torch.full((4,), -200.0))
    assert bool(torch.isfinite(found.sums).all())


@given(st.floats(1e-3, 1e6), st.floats(1e-4, 1e5))
def test_temperatures_cover_the_scale_and_go_through_the_given_one(scale, through):
    found = temperatures_around(scale, through)
    assert through in found
    assert found[0] <= 0.05 * scale
    assert found[-1] >= scale
    assert all(a < b for a, b in itertools.pairwise(found))
    assert all(2 * a == b for a, b in zip(found, found[2:], strict=False))


def test_spread_is_the_mean_distance_beyond_the_nearest():
    distances = torch.tensor([[1.0, 3.0, math.inf], [5.0, math.inf, math.inf], [4.0, 4.0, 10.0]])
    ids = torch.tensor([[1, 2, -1], [3, -1, -1], [4, 5, 6]])
    neighbors = from_distances(ids, distances, torch.zeros(3, 3, dtype=torch.int64))
    assert spread(neighbors) == pytest.approx((1.0 + 2.0) / 2)
    flipped = from_distances(ids, -distances, neighbors.values, "ip")
    assert spread(flipped) == pytest.approx((1.0 + 2.0) / 2)
    nothing = (part[:, :0] for part in (ids, distances, neighbors.values))
    assert spread(from_distances(*nothing)) == 1.0
