"""Measures perplexity under thousands of settings for one way of finding neighbors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.location import DEFAULT_KEY
from knn_logits.index.base import Index
from knn_logits.lab.ablation.shared_parts import Queries, Studied, file_name, half, stored_arrays
from knn_logits.measure.likelihood import Choice, Grid, GridLikelihood, spread, temperatures_around
from knn_logits.metrics import DEFAULT_METRIC, Metric, as_distance
from knn_logits.mixture.distribution import log_p_knn_of
from knn_logits.mixture.weights import log_weights
from knn_logits.search.neighbors import Neighbors, nearest_nearness, powers_up_to

_ROWS_AT_ONCE = 512

# Finds the neighbors of the queries in some rows.
Search = Callable[[Tensor], Neighbors]


@dataclass(frozen=True)
class Measured:
    """The perplexities of both halves of a text, float64 [ks, temperatures, lmbdas]."""

    grid: Grid
    chosen_on: Tensor
    held_out: Tensor
    lm: float  # of the held-out half under the model alone
    best: Choice  # on the other half

    @property
    def perplexity(self) -> float:
        """The perplexity of the half that is held out, under the best setting of the other."""
        return float(self.held_out[self.best.place])

    def at(self, axis: int) -> list[float]:
        """The held-out perplexity for each k (0), temperature (1) or λ (2), the others chosen."""
        values = []
        for number in range(self.chosen_on.shape[axis]):
            chosen_on = self.chosen_on.select(axis, number).nan_to_num(nan=math.inf)
            flat = self.held_out.select(axis, number).flatten()
            values.append(float(flat[int(chosen_on.flatten().argmin())]))
        return values

    def lmbda_at(self, temperature: int) -> float:
        """The best λ for a temperature of the grid, by its number, over every k."""
        chosen_on = self.chosen_on[:, temperature].nan_to_num(nan=math.inf)
        return self.grid.lmbdas[int(chosen_on.flatten().argmin()) % len(self.grid.lmbdas)]


def measure(
    studied: Studied,
    phase: str,
    search: Callable[[], Search],
    metric: Metric = DEFAULT_METRIC,
    key: str = DEFAULT_KEY,
) -> Measured:
    """Adds up each token's likelihood under every setting, once for all runs of a phase."""
    path = studied.work / f"measured-{file_name(phase)}.safetensors"
    arrays = stored_arrays(path, lambda: likelihoods(studied, phase, search(), metric, key))
    grid = Grid(*(tuple(arrays[name].tolist()) for name in ("ks", "temperatures", "lmbdas")))
    chosen_on = torch.from_numpy(arrays["chosen_on"])
    place = np.unravel_index(int(chosen_on.nan_to_num(nan=math.inf).argmin()), chosen_on.shape)
    best = grid.choice((int(place[0]), int(place[1]), int(place[2])), chosen_on)
    held_out = torch.from_numpy(arrays["held_out"])
    return Measured(grid, chosen_on, held_out, float(arrays["lm"][0]), best)


def likelihoods(
    studied: Studied, phase: str, search: Search, metric: Metric, key: str
) -> dict[str, Array]:
    """Computes the perplexities of both halves under every setting of a grid, with the grid."""
    queries = studied.queries(key)
    halves: list[GridLikelihood] = []
    for first in range(0, len(queries), _ROWS_AT_ONCE):
        studied.progress(phase, first, len(queries))
        rows = torch.arange(first, min(first + _ROWS_AT_ONCE, len(queries)))
        neighbors = search(rows)
        if not halves:
            scale = spread(neighbors)
            temperatures = {*temperatures_around(scale, scale / 4)}
            if metric == DEFAULT_METRIC:
                # The papers' temperature is part of every table.
                temperatures.add(1.0)
            grid = Grid(powers_up_to(studied.largest_k), tuple(sorted(temperatures)))
            halves = [GridLikelihood(grid), GridLikelihood(grid)]
        second = queries.second[rows]
        for likelihood, part in zip(halves, (~second, second), strict=True):
            if bool(part.any()):
                targets, log_p_lm = queries.targets[rows][part], queries.log_p_lm[rows][part]
                likelihood.add(neighbors[part], targets, log_p_lm)
    studied.progress(phase, len(queries), len(queries))
    chosen_on, held_out = halves
    return {
        "ks": np.array(grid.ks),
        "temperatures": np.array(grid.temperatures),
        "lmbdas": np.array(grid.lmbdas),
        "chosen_on": chosen_on.perplexities().numpy(),
        "held_out": held_out.perplexities().numpy(),
        "lm": np.array([math.exp(-held_out.lm / held_out.tokens)]),
    }


def measure_base(studied: Studied) -> Measured:
    """Measures the base setting, which is exact search with L2, the FFN's input, and float16."""
    return measure(studied, "settings", exact_search(studied))


def measure_full(studied: Studied) -> Measured:
    """Measures the base setting with keys in float32. Two studies share the result."""
    return measure(studied, "precision: full (float32)", exact_search(studied, rounding=None))


def exact_search(
    studied: Studied,
    key: str = DEFAULT_KEY,
    metric: Metric = DEFAULT_METRIC,
    rounding: Callable[[Array], Array] | None = half,
) -> Callable[[], Search]:
    """A function that opens an exact search, as `Studied.exact` explains."""
    return lambda: searching(studied, studied.exact(key, metric, rounding), key)


def searching(studied: Studied, index: Index, key: str = DEFAULT_KEY) -> Search:
    """A search in an index over the keys of one place."""
    queries, values = studied.queries(key), studied.store.values.long()
    return lambda rows: search_index(index, values, queries.states[rows], studied.largest_k)


def search_index(index: Index, values: Tensor, queries: Tensor, k: int) -> Neighbors:
    """The neighbors of queries, float32 [rows, dim], with the value of each entry."""
    nearness, ids = index.search(queries, k)
    return Neighbors(ids, nearness, values[ids.clamp(min=0)], index.metric)


def log_p_knn(
    queries: Queries, search: Search, metric: Metric, k: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """log p_kNN of every token under one setting, and the distance of its nearest neighbor."""
    votes, nearest = [], []
    for first in range(0, len(queries), _ROWS_AT_ONCE):
        rows = torch.arange(first, min(first + _ROWS_AT_ONCE, len(queries)))
        neighbors = search(rows)
        nearness = nearest_nearness(neighbors)
        nearest.append(as_distance(nearness, metric))
        neighbors = neighbors.nearest(k)
        weights = log_weights(neighbors, temperature)
        votes.append(log_p_knn_of(weights, neighbors.values, queries.targets[rows]))
    return torch.cat(votes), torch.cat(nearest)
