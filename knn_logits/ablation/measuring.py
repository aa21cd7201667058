"""Thousands of settings for one way of finding neighbors: what is best, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.ablation.bench import Queries, Studied, half, search
from knn_logits.capture.location import DEFAULT_KEY
from knn_logits.config import Metric
from knn_logits.datastore.files import write_arrays
from knn_logits.datastore.reading import read_arrays
from knn_logits.distribution import log_p_knn_of, log_weights
from knn_logits.index.base import Index
from knn_logits.neighbors import Neighbors
from knn_logits.progress import Progress
from knn_logits.scoring.likelihood import (
    Choice,
    Grid,
    GridLikelihood,
    powers_up_to,
    spread,
    temperatures_around,
)

_ROWS_AT_ONCE = 512

# Of some queries, their rows and themselves, the neighbors.
Search = Callable[[Tensor], Neighbors]


@dataclass(frozen=True)
class Measured:
    """Perplexities of a text under every setting of a grid.

    Attributes:
        grid: The settings.
        chosen_on: Of the half on which settings are chosen, float64 [ks, temperatures, lmbdas].
        held_out: Of the other half, likewise.
        lm: Of the other half under the model alone.
        best: The best setting on the first half.
    """

    grid: Grid
    chosen_on: Tensor
    held_out: Tensor
    lm: float
    best: Choice

    @property
    def perplexity(self) -> float:
        """Of the half held out, at the best setting of the other half."""
        return float(self.held_out[self.best.place])

    def at(self, axis: int) -> list[float]:
        """Held-out perplexity for each k (0), temperature (1) or λ (2), the others at their best.

        Those are chosen anew on the first half for each.
        """
        found = []
        for number in range(self.chosen_on.shape[axis]):
            there = self.chosen_on.select(axis, number).nan_to_num(nan=math.inf)
            flat = self.held_out.select(axis, number).flatten()
            found.append(float(flat[int(there.flatten().argmin())]))
        return found

    def lmbda_at(self, temperature: int) -> float:
        """The best λ at a temperature of the grid, by its number, over every k."""
        there = self.chosen_on[:, temperature].nan_to_num(nan=math.inf)
        return self.grid.lmbdas[int(there.flatten().argmin()) % len(self.grid.lmbdas)]

    def to_dict(self) -> dict[str, Any]:
        """What a report keeps of it."""
        return {
            "k": self.best.k,
            "lmbda": self.best.lmbda,
            "temperature": self.best.temperature,
            "perplexity": self.perplexity,
            "lm": self.lm,
        }


def measure(
    queries: Queries,
    search: Search,
    metric: Metric,
    largest_k: int,
    progress: Progress,
    phase: str,
) -> Measured:
    """Searches once for each token, and adds up its likelihood under every setting.

    Args:
        queries: Of the text.
        search: Finds the neighbors of some rows, int64 [rows].
        metric: Of the distances.
        largest_k: Neighbors that are searched.
        progress: Told how many tokens are done.
        phase: What that is called.
    """
    parts: list[GridLikelihood] = []
    for first in range(0, len(queries), _ROWS_AT_ONCE):
        progress(phase, first, len(queries))
        rows = torch.arange(first, min(first + _ROWS_AT_ONCE, len(queries)))
        found = search(rows)
        if not parts:
            scale = spread(found, metric)
            grid = Grid(powers_up_to(largest_k), temperatures_around(scale, scale / 4))
            parts = [GridLikelihood(grid, metric), GridLikelihood(grid, metric)]
        for part, own in zip(parts, (~queries.second[rows], queries.second[rows]), strict=True):
            if bool(own.any()):
                part.add(found[own], queries.targets[rows][own], queries.log_p_lm[rows][own])
    progress(phase, len(queries), len(queries))
    one, other = parts
    return Measured(
        grid,
        one.perplexities(),
        other.perplexities(),
        math.exp(-other.lm / other.tokens),
        one.best(),
    )


def log_p_knn(
    queries: Queries, search: Search, metric: Metric, k: int, temperature: float
) -> Tensor:
    """log p_kNN of every token at one setting, float32 [tokens]."""
    found = []
    for first in range(0, len(queries), _ROWS_AT_ONCE):
        rows = torch.arange(first, min(first + _ROWS_AT_ONCE, len(queries)))
        near = search(rows)
        order = near.distances.topk(min(k, near.k), dim=-1, largest=metric != "l2").indices
        own = (one.gather(-1, order) for one in (near.ids, near.distances, near.values))
        near = Neighbors(*own)  # type: ignore[arg-type]
        weights = log_weights(near, metric, temperature)
        found.append(log_p_knn_of(weights, near.values, queries.targets[rows]))
    return torch.cat(found)


def measure_base(studied: Studied) -> Measured:
    """The setting that the other studies vary: exact search, the FFN's input, L2, half precision.

    It is kept in the work folder, since several studies read it.
    """
    path = studied.work / "base.safetensors"
    queries = studied.queries()
    if not path.exists():
        found = measure(
            queries, base_search(studied), "l2", studied.largest_k, studied.progress, "settings"
        )
        arrays = {
            "ks": np.array(found.grid.ks),
            "temperatures": np.array(found.grid.temperatures),
            "lmbdas": np.array(found.grid.lmbdas),
            "chosen_on": found.chosen_on.numpy(),
            "held_out": found.held_out.numpy(),
            "lm": np.array([found.lm]),
        }
        write_arrays(path, arrays, {})
    arrays = read_arrays(path)[0]
    names = ("ks", "temperatures", "lmbdas")
    grid = Grid(*(tuple(arrays[name].tolist()) for name in names))
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


def base_search(studied: Studied) -> Search:
    """Searches as `measure_base` does."""
    index = studied.exact(rounded=half)
    return searching(studied, index, DEFAULT_KEY)


def searching(studied: Studied, index: Index, key: str) -> Search:
    """Searches an index over the keys of one place."""
    queries, values = studied.queries(key), studied.store(key).values.long()
    return lambda rows: search(index, values, queries.states[rows], studied.largest_k)
