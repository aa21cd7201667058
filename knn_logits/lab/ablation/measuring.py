"""Measures perplexity under thousands of settings for one way of finding neighbors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.location import DEFAULT_KEY
from knn_logits.index.base import Index
from knn_logits.lab.ablation.bench import Queries, Studied, file_name, half, search
from knn_logits.measure.likelihood import Choice, Grid, GridLikelihood, spread, temperatures_around
from knn_logits.mixture.distribution import log_p_knn_of
from knn_logits.mixture.weights import log_weights
from knn_logits.search.neighbors import Neighbors, nearest_nearness, powers_up_to
from knn_logits.settings.config import Metric
from knn_logits.store.files import write_arrays
from knn_logits.store.reading import read_arrays

_ROWS_AT_ONCE = 512

# Finds the neighbors of the queries in some rows.
Search = Callable[[Tensor], Neighbors]


@dataclass(frozen=True)
class Measured:
    """The perplexities of a text under every setting of a grid.

    Attributes:
        grid: The settings.
        chosen_on: float64 [ks, temperatures, lmbdas], the perplexities of the half on which
            settings are chosen.
        held_out: float64 [ks, temperatures, lmbdas], the perplexities of the other half.
        lm: The perplexity of the other half under the model alone.
        best: The best setting on the first half.
    """

    grid: Grid
    chosen_on: Tensor
    held_out: Tensor
    lm: float
    best: Choice

    @property
    def perplexity(self) -> float:
        """The perplexity of the half that is held out, under the best setting of the other."""
        return float(self.held_out[self.best.place])

    def at(self, axis: int) -> list[float]:
        """Returns the held-out perplexity for each value of one setting.

        For each value the other settings are chosen again on the first half.

        Args:
            axis: The setting: 0 for k, 1 for the temperature, 2 for λ.
        """
        found = []
        for number in range(self.chosen_on.shape[axis]):
            there = self.chosen_on.select(axis, number).nan_to_num(nan=math.inf)
            flat = self.held_out.select(axis, number).flatten()
            found.append(float(flat[int(there.flatten().argmin())]))
        return found

    def lmbda_at(self, temperature: int) -> float:
        """Returns the best λ for a temperature of the grid, over every k.

        Args:
            temperature: The number of the temperature in the grid.
        """
        there = self.chosen_on[:, temperature].nan_to_num(nan=math.inf)
        return self.grid.lmbdas[int(there.flatten().argmin()) % len(self.grid.lmbdas)]

    def to_dict(self) -> dict[str, Any]:
        """Returns the best setting and its perplexity as JSON."""
        return {
            "k": self.best.k,
            "lmbda": self.best.lmbda,
            "temperature": self.best.temperature,
            "perplexity": self.perplexity,
            "lm": self.lm,
        }


def measure(
    studied: Studied,
    phase: str,
    search: Callable[[], Search],
    metric: Metric = "l2",
    key: str = DEFAULT_KEY,
) -> Measured:
    """Searches once for each token, and adds up its likelihood under every setting.

    The result is kept in the work folder under the name of the phase. A run that continues reads it
    again.

    Args:
        studied: The model, the corpus and the text.
        phase: A unique name of the measurement.
        search: Opens a search. It is called only if the measurement was not made yet.
        metric: The metric of the distances.
        key: The place of the model at which the queries are read.
    """
    path = studied.work / f"measured-{file_name(phase)}.safetensors"
    if not path.exists():
        write_arrays(path, _likelihoods(studied, phase, search(), metric, key), {})
    arrays = read_arrays(path)[0]
    grid = Grid(*(tuple(arrays[name].tolist()) for name in ("ks", "temperatures", "lmbdas")))
    chosen_on = torch.from_numpy(arrays["chosen_on"])
    place = np.unravel_index(int(chosen_on.nan_to_num(nan=math.inf).argmin()), chosen_on.shape)
    k, temperature, lmbda = (int(one) for one in place)
    best = Choice(
        grid.ks[k],
        grid.temperatures[temperature],
        grid.lmbdas[lmbda],
        (k, temperature, lmbda),
        float(chosen_on[k, temperature, lmbda]),
    )
    held_out = torch.from_numpy(arrays["held_out"])
    return Measured(grid, chosen_on, held_out, float(arrays["lm"][0]), best)


def _likelihoods(
    studied: Studied, phase: str, search: Search, metric: Metric, key: str
) -> dict[str, Array]:
    """Computes the perplexities of both halves under every setting of a grid, with the grid."""
    queries = studied.queries(key)
    parts: list[GridLikelihood] = []
    for first in range(0, len(queries), _ROWS_AT_ONCE):
        studied.progress(phase, first, len(queries))
        rows = torch.arange(first, min(first + _ROWS_AT_ONCE, len(queries)))
        found = search(rows)
        if not parts:
            scale = spread(found)
            temperatures = {*temperatures_around(scale, scale / 4)}
            if metric == "l2":
                # The papers' temperature is part of every table.
                temperatures.add(1.0)
            grid = Grid(powers_up_to(studied.largest_k), tuple(sorted(temperatures)))
            parts = [GridLikelihood(grid), GridLikelihood(grid)]
        for part, own in zip(parts, (~queries.second[rows], queries.second[rows]), strict=True):
            if bool(own.any()):
                part.add(found[own], queries.targets[rows][own], queries.log_p_lm[rows][own])
    studied.progress(phase, len(queries), len(queries))
    one, other = parts
    return {
        "ks": np.array(grid.ks),
        "temperatures": np.array(grid.temperatures),
        "lmbdas": np.array(grid.lmbdas),
        "chosen_on": one.perplexities().numpy(),
        "held_out": other.perplexities().numpy(),
        "lm": np.array([math.exp(-other.lm / other.tokens)]),
    }


def measure_base(studied: Studied) -> Measured:
    """Measures the base setting, which is exact search with L2, the FFN's input, and float16."""
    return measure(studied, "settings", exact_search(studied))


def measure_full(studied: Studied) -> Measured:
    """Measures the base setting with keys in float32. Two studies share the result."""
    return measure(studied, "precision: full (float32)", exact_search(studied, rounded=None))


def exact_search(
    studied: Studied,
    key: str = DEFAULT_KEY,
    metric: Metric = "l2",
    rounded: Callable[[Array], Array] | None = half,
) -> Callable[[], Search]:
    """Returns a function that opens an exact search, as `Studied.exact` explains."""
    return lambda: searching(studied, studied.exact(key, metric, rounded), key)


def searching(studied: Studied, index: Index, key: str = DEFAULT_KEY) -> Search:
    """Returns a search in an index over the keys of one place."""
    queries, values = studied.queries(key), studied.store().values.long()
    return lambda rows: search(index, values, queries.states[rows], studied.largest_k)


def log_p_knn(
    queries: Queries, search: Search, metric: Metric, k: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """Computes what the neighbors say of every token under one setting.

    Returns:
        log p_kNN of each token, float32 [tokens]; and the distance of its nearest neighbor, float32
        [tokens].
    """
    found, nearest = [], []
    for first in range(0, len(queries), _ROWS_AT_ONCE):
        rows = torch.arange(first, min(first + _ROWS_AT_ONCE, len(queries)))
        near = search(rows)
        nearness = nearest_nearness(near)
        nearest.append(-nearness if metric == "l2" else nearness)
        near = near.nearest(k)
        weights = log_weights(near, temperature)
        found.append(log_p_knn_of(weights, near.values, queries.targets[rows]))
    return torch.cat(found), torch.cat(nearest)
