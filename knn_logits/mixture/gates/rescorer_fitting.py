"""Fits a `RescorerGate` to a sample of tokens, with all their neighbors, limited in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from knn_logits.arrays import Array, Bools, Ints
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.meta_k import nearest_first
from knn_logits.mixture.gates.rescorer_features import (
    NEIGHBOR_FEATURES,
    SCORING,
    NearestNeighbors,
    bounded,
    scores,
    standardised,
)
from knn_logits.mixture.weights import Weighing, log_weights
from knn_logits.progress import Progress, no_progress
from knn_logits.search.neighbors import Neighbors

# The neighbors of a sample take at most so much memory.
MOST_BYTES = 256 << 20
ROWS_AT_ONCE = 128
# The mean and the scale of features are those of so many tokens.
_MEASURED = 2048
_BATCH, _RATE = 128, 4e-3
_LEAST_SCALE, _LARGEST = 1e-6, 1e15
# Numbers in place of -inf, which has no gradient: the least log p_LM and log p_kNN, and a weight.
_LOWEST, _NO_VOTE, _NOTHING = -80.0, -1e4, -1e30


@dataclass(frozen=True)
class Neighborhoods:
    """The nearest neighbors of some tokens of a text, the nearest first."""

    nearness: npt.NDArray[np.float32]  # float32 [tokens, k], larger is nearer; -inf for padding
    log_p: npt.NDArray[np.float32]  # float32 [tokens, k], log p_LM of each neighbor's value
    groups: npt.NDArray[np.int16]  # [tokens, k], equal where values are; -1 for padding
    bonus: npt.NDArray[np.float32] | None  # [tokens, k]; None if no neighbor has one
    targets: npt.NDArray[np.int16]  # [tokens], the group of the token; -1 for none

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, rows: slice | Bools | Ints) -> Neighborhoods:
        """The neighbors of some of the tokens."""
        bonus = None if self.bonus is None else self.bonus[rows]
        return Neighborhoods(
            self.nearness[rows], self.log_p[rows], self.groups[rows], bonus, self.targets[rows]
        )

    def near(self, metric: Metric, temperature: float) -> NearestNeighbors:
        """The neighbors as a gate reads them, with their weights at a temperature."""
        groups = torch.from_numpy(self.groups.astype(np.int64))
        present = groups >= 0
        neighbors = Neighbors(present.long() - 1, torch.from_numpy(self.nearness), groups, metric)
        bonus = None if self.bonus is None else torch.from_numpy(self.bonus)
        return NearestNeighbors(
            present,
            log_weights(neighbors, temperature, bonus),
            neighbors.nearness,
            torch.from_numpy(self.log_p),
            groups.clamp(min=0),
        )

    def votes(self) -> Tensor:
        """Whether each neighbor votes for the token, bool [tokens, k]."""
        groups, targets = torch.from_numpy(self.groups), torch.from_numpy(self.targets)
        return (groups == targets[:, None]) & (groups >= 0)


class NeighborhoodSample:
    """A uniform sample of tokens with their neighbors: reservoir sampling (Vitter 1985, R)."""

    def __init__(
        self,
        k: int,
        metric: Metric,
        weighing: Weighing,
        seed: int = 0,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.k = k
        self._weighing = weighing
        self.metric: Metric = metric
        self._random = np.random.default_rng(seed)
        self._seen = 0
        most = max(1, most_bytes // (10 * k))
        # The system gives memory where something is written, so a short text takes little.
        self._nearness = np.empty((most, k), np.float32)
        self._log_p = np.empty((most, k), np.float32)
        self._groups = np.empty((most, k), np.int16)
        self._targets = np.empty(most, np.int16)
        self._tokens = np.empty(most, np.int64)
        self._bonus: npt.NDArray[np.float32] | None = None

    def add(self, neighbors: Neighbors, targets: Tensor, log_p_lm: Tensor) -> None:
        """Adds tokens `targets` [rows], their neighbors and log p_LM [rows, vocabulary]."""
        numbers = np.arange(self._seen, self._seen + neighbors.rows)
        self._seen += neighbors.rows
        slots = np.where(
            numbers < len(self._tokens), numbers, self._random.integers(0, numbers + 1)
        )
        # Of several tokens for one slot the last stays.
        _, last = np.unique(slots[::-1], return_index=True)
        rows = np.sort(len(slots) - 1 - last)
        rows = rows[slots[rows] < len(self._tokens)]
        if not len(rows):
            return
        slots, chosen = slots[rows], torch.from_numpy(rows)
        self._tokens[slots] = numbers[rows]
        self._put(
            slots,
            neighbors[chosen.to(neighbors.ids.device)],
            targets[chosen],
            log_p_lm[chosen.to(log_p_lm.device)],
        )

    def _put(self, slots: Ints, neighbors: Neighbors, targets: Tensor, log_p_lm: Tensor) -> None:
        order = nearest_first(neighbors)[:, : self.k]
        width = order.shape[-1]
        for array, empty in (
            (self._nearness, -np.inf),
            (self._log_p, 0.0),
            (self._groups, -1),
            (self._targets, -1),
        ):
            array[slots] = empty
        bonus = self._weighing.bonus(neighbors)
        if self._bonus is None and bonus is not None:
            self._bonus = np.zeros_like(self._nearness)
        if self._bonus is not None:
            self._bonus[slots] = 0.0
        if not width:
            return
        nearest = NearestNeighbors.of(neighbors, neighbors.nearness, log_p_lm, order)
        present = nearest.present.cpu()
        groups = nearest.groups.cpu().masked_fill(~present, -1)
        values = neighbors.values.gather(-1, order).cpu()
        is_vote, column = ((values == targets.cpu()[:, None]) & present).max(dim=-1)
        target = groups.gather(-1, column[:, None])[:, 0].masked_fill(~is_vote, -1)
        self._targets[slots] = target.numpy()
        self._groups[slots, :width] = groups.numpy()
        self._log_p[slots, :width] = nearest.log_p.cpu().numpy()
        self._nearness[slots, :width] = nearest.nearness.cpu().numpy()
        if self._bonus is not None and bonus is not None:
            self._bonus[slots, :width] = bonus.gather(-1, order).cpu().numpy()

    def taken(self) -> tuple[Ints, Neighborhoods]:
        """Returns the numbers of the tokens in the sample, counted as added, and the sample."""
        rows = slice(0, min(self._seen, len(self._tokens)))
        sample = Neighborhoods(
            self._nearness, self._log_p, self._groups, self._bonus, self._targets
        )
        return self._tokens[rows], sample[rows]


def trained_rescorer(
    neighborhoods: Neighborhoods,
    features: Array,
    log_p_lm: Array,
    metric: Metric,
    *,
    temperature: float,
    lmbda: float,
    units: int = 16,
    lmbda_units: int = 32,
    steps: int = 800,
    decay: float = 0.3,
    seed: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Tensor]:
    """Minimises -log(λ p_kNN + (1 - λ) p_LM), from the best constant λ and the plain weights."""
    # 800 steps take half a minute of a core at k 512.
    lm = torch.from_numpy(np.array(log_p_lm, np.float32))
    read = torch.from_numpy(np.array(features, np.float32))
    usable = _usable(neighborhoods, read, lm)
    places = np.flatnonzero(usable)
    lm = lm.clamp(min=_LOWEST)
    random = torch.Generator().manual_seed(seed)
    measured = places[torch.randperm(len(places), generator=random).numpy()[:_MEASURED]]
    of_neighbors = _scaling(neighborhoods[measured], metric, temperature)
    mean, scale = read[usable].mean(0), read[usable].std(0, correction=0)
    scale = torch.where(scale > _LEAST_SCALE, scale, torch.ones_like(scale))
    rows = (read - mean) / scale
    weights = _first_weights(units, lmbda_units, rows.shape[1], lmbda, random)

    def loss(batch: Ints) -> Tensor:
        chosen = neighborhoods[batch]
        nearest, of = chosen.near(metric, temperature), torch.from_numpy(batch)
        features = standardised(nearest.features(metric), *of_neighbors)
        bonus = scores(features, bounded(rows[of]), *(weights[name] for name in SCORING))
        # An infinite number would have no gradient.
        heavy = nearest.log_weights.isfinite()
        logits = (
            weights["log_sharpness"].exp() * nearest.log_weights.masked_fill(~heavy, 0.0) + bonus
        )
        logits = logits.masked_fill(~heavy, _NOTHING)
        voted = logits.masked_fill(~chosen.votes(), _NOTHING).logsumexp(-1)
        knn = (voted - logits.logsumexp(-1)).clamp(min=_NO_VOTE)
        inside = torch.tanh(rows[of] @ weights["hidden"].T + weights["hidden_bias"])
        logit = inside @ weights["out"] + weights["out_bias"]
        mixed = torch.logaddexp(
            lm[of] + functional.logsigmoid(-logit), knn + functional.logsigmoid(logit)
        )
        return mixed.mean().neg()

    optimizer = torch.optim.AdamW(weights.values(), lr=_RATE, weight_decay=decay)
    batches = (
        places[torch.randint(len(places), (min(len(places), _BATCH),), generator=random).numpy()]
        for _ in range(steps)
    )
    _train(optimizer, loss, batches, steps, progress)
    arrays = {name: weight.detach() for name, weight in weights.items()}
    arrays["sharpness"] = arrays.pop("log_sharpness").exp()
    arrays |= {"mean": mean, "scale": scale}
    arrays["near_mean"], arrays["near_scale"] = of_neighbors
    return arrays


def _usable(neighborhoods: Neighborhoods, features: Tensor, log_p_lm: Tensor) -> Bools:
    """Which tokens can be fitted to, bool [tokens]. The arrays must fit one another."""
    tokens = len(neighborhoods)
    if features.ndim != 2 or log_p_lm.shape != (tokens,) or len(features) != tokens:
        raise ConfigError("the arrays to fit a gate on need one row per token")
    if bool(log_p_lm.isnan().any()) or bool(features.isnan().any()):
        raise ConfigError("the arrays to fit a gate on contain NaN: recompute them")
    has_neighbors: Bools = neighborhoods.groups[:, 0] >= 0
    usable: Bools = has_neighbors & (np.isfinite(log_p_lm.numpy()) | (neighborhoods.targets >= 0))
    if not usable.any():
        raise ConfigError(
            "no token has a neighbor: fit the gate on text similar to the datastore's"
        )
    return usable


def _train(
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Ints], Tensor],
    batches: Iterable[Ints],
    steps: int,
    progress: Progress,
) -> None:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step, batch in enumerate(batches):
        progress("gate", step, steps)
        with torch.enable_grad():
            optimizer.zero_grad()
            loss(batch).backward()
        optimizer.step()
        schedule.step()
    progress("gate", steps, steps)


def _first_weights(
    units: int, lmbda_units: int, inputs: int, lmbda: float, random: torch.Generator
) -> dict[str, Tensor]:
    """Draws the weights that a training begins with. They leave each neighbor's weight as it is."""
    kind = torch.float32

    def drawn(outputs: int, numbers: int) -> Tensor:
        values = torch.rand(outputs, numbers, generator=random, dtype=kind)
        return values.mul(2.0).sub(1.0).div(numbers**0.5)

    start = min(max(lmbda, 0.01), 0.99)
    weights = {
        "near_hidden": drawn(units, len(NEIGHBOR_FEATURES)),
        "near_row": drawn(units, inputs),
        "near_bias": drawn(units, 1)[:, 0],
        "near_out": torch.zeros(units, dtype=kind),
        "hidden": drawn(lmbda_units, inputs),
        "hidden_bias": torch.zeros(lmbda_units, dtype=kind),
        "out": torch.zeros(lmbda_units, dtype=kind),
        "out_bias": torch.full((1,), math.log(start / (1.0 - start)), dtype=kind),
        "log_sharpness": torch.zeros(1, dtype=kind),
    }
    for weight in weights.values():
        weight.requires_grad_()
    return weights


def _scaling(
    neighborhoods: Neighborhoods, metric: Metric, temperature: float
) -> tuple[Tensor, Tensor]:
    """Computes the mean and the standard deviation of each feature over all neighbors."""
    total = torch.zeros(3, len(NEIGHBOR_FEATURES), dtype=torch.float64)
    for first in range(0, len(neighborhoods), ROWS_AT_ONCE):
        nearest = neighborhoods[first : first + ROWS_AT_ONCE].near(metric, temperature)
        features = nearest.features(metric)[nearest.present].double().clamp(-_LARGEST, _LARGEST)
        total += torch.stack(
            [torch.ones_like(features).sum(0), features.sum(0), features.square().sum(0)]
        )
    number, sums, squares = total
    mean = sums / number
    scale = (squares / number - mean.square()).clamp(min=0.0).sqrt().float()
    return mean.float(), torch.where(scale > _LEAST_SCALE, scale, torch.ones_like(scale))
