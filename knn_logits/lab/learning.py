"""Learns the rows of a memory by the likelihood of tokens: what is held out, how long, settings.

An output embedding with several rows a token: p(y) is the softmax over all rows, summed over those
of y. Xu, Alon and Neubig (2023), "Why do nearest neighbor language models work?".
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array, Ints
from knn_logits.building.settings_choice import (
    entry_of_places,
    part_of_entries,
    pieces_of,
    sample_size,
)
from knn_logits.engine.compatibility import vocabulary_size
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import windows_of
from knn_logits.errors import CorpusError
from knn_logits.index.exact import ExactIndex
from knn_logits.measure.likelihood import LMBDAS, Grid, GridLikelihood
from knn_logits.measure.text_pass import score_pieces, tokens_of_scoring_pass
from knn_logits.metrics import LEARNED_METRIC
from knn_logits.progress import Progress
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.settings.config import FEWEST_CALIBRATED
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import LearnedRecord, SettingsRecord

logger = logging.getLogger(__name__)

_BATCH = 256
# Tests with the held-out text in an epoch, and those without a gain after which learning ends.
_TESTS, _PATIENCE = 2, 3
_SMALLEST_K, _K_TOLERANCE = 64, 0.002
# The softmax is over all rows when they learn. With 12,843 rows, the 1,024 likeliest alone cost 8%.
_LARGEST_K = 4096
# A token that is 16 times as frequent gets 8 times as many rows.
_POWER = 0.75
# k-means looks at this many states a row, and moves the centers this often.
_STATES_A_ROW, _MOVES = 64, 3
# A center of few states is drawn to the mean of all states.
_DRAWN = 2.0
# Rows are learnt at temperature 1. A memory that learnt its corpus too well needs a higher one.
_TEMPERATURES = tuple(2.0 ** (step / 4) for step in range(-2, 9))
# Adam's decays, and its step in units of the rows' own size.
_DECAYS, _STEP = (0.9, 0.99), 0.05
_ROWS_AT_ONCE = 256
_MIN_P = 1e-30
_SCALED_TOKENS = 1024
# No more than this share of the corpus is held out.
_MAX_HELD_OUT = 0.1


@dataclass(frozen=True)
class Held:
    """Tokens that the rows are not learnt from."""

    states: Tensor  # float32 [tokens, dim]
    tokens: Tensor  # int64 [tokens], numbers among the memory's tokens; -1 for another token
    targets: Tensor  # int64 [tokens], as the model numbers them
    log_p_lm: Tensor  # float32 [tokens]


class Rows:
    """Rows that learn in place, [rows, dim], sorted by token; each token has `allotted` of them."""

    def __init__(self, rows: Tensor, allotted: Ints, steps: int) -> None:
        self.rows = rows
        device = rows.device
        self.allotted = torch.from_numpy(allotted).to(device)
        self.first = self.allotted.cumsum(0) - self.allotted
        self._adam = torch.optim.Adam([rows], betas=_DECAYS)
        self._size = 0.0
        self._steps, self._step = max(1, steps), 0

    def begin(self, scale: float) -> None:
        """Multiplies the rows before they begin to learn, and chooses the size of a step."""
        self.rows *= scale
        self._size = _STEP * float(self.rows.square().mean().sqrt())

    def learn(self, states: Tensor, tokens: Tensor) -> None:
        """Makes tokens, numbers among the memory's, int64 [batch], likelier after some states."""
        p = torch.softmax(states @ self.rows.T, dim=-1)
        row, column = self._rows_of(tokens)
        votes = p[row, column]
        total = torch.zeros(len(tokens), device=p.device).index_add_(0, row, votes)
        # The gradient at a row is its p less its part in the token's p.
        p[row, column] = votes - votes / total.clamp(min=_MIN_P)[row]
        self._move(p.T @ states / len(tokens))

    def _rows_of(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The place in a batch, and the row, of each row of each token."""
        allotted = self.allotted[tokens]
        batch = torch.arange(len(tokens), device=tokens.device)
        row = torch.repeat_interleave(batch, allotted)
        before = torch.repeat_interleave(allotted.cumsum(0) - allotted, allotted)
        column = torch.arange(len(row), device=tokens.device) - before
        return row, column + self.first[tokens][row]

    def _move(self, gradient: Tensor) -> None:
        self._step += 1
        for group in self._adam.param_groups:
            group["lr"] = self._size * max(0.05, 1.0 - self._step / self._steps)
        self.rows.grad = gradient
        self._adam.step()

    def perplexity(self, held: Held, scale: float = 1.0) -> float:
        """The perplexity of other tokens under the mixture, at the best λ, for scaled rows."""
        log_p = torch.full((len(held.tokens),), -math.inf)
        for first in range(0, len(held.tokens), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            tokens = held.tokens[part].to(self.rows.device)
            learned = tokens >= 0
            states = held.states[part].to(self.rows.device)[learned]
            p = torch.softmax(scale * (states @ self.rows.T), dim=-1)
            row, column = self._rows_of(tokens[learned])
            total = p.new_zeros(len(states)).index_add_(0, row, p[row, column])
            log_p[part][learned.cpu()] = total.log().cpu()
        least = math.inf
        for lmbda in LMBDAS:
            mixed = torch.logaddexp(
                log_p + math.log(max(lmbda, _MIN_P)), held.log_p_lm + math.log1p(-lmbda)
            )
            least = min(least, -float(mixed.double().mean()))
        return math.exp(least)


def best_scale(rows: Rows, held: Held, variance: float) -> float:
    """The factor at which rows that are centers of states predict other tokens best."""
    fields = (held.states, held.tokens, held.targets, held.log_p_lm)
    held = Held(*(values[:_SCALED_TOKENS] for values in fields))
    scales = [2.0**power / variance for power in range(1, 8)]
    return min(scales, key=lambda scale: rows.perplexity(held, scale))


def held_out(store: Datastore, seed: int) -> Array:
    """Chooses whole documents of the corpus, or else its end, bool [entries]."""
    entries = len(store)
    size = max(1, min(int(_MAX_HELD_OUT * entries), sample_size(entries)))
    parts = part_of_entries(store)
    held = np.zeros(entries, dtype=bool)
    numbers, counts = np.unique(parts, return_counts=True)
    for place in np.random.default_rng(seed).permutation(len(numbers)).tolist():
        if held.sum() + counts[place] <= 1.5 * size and len(numbers) > 1:
            held |= parts == numbers[place]
        if held.sum() >= size:
            break
    if not held.any():
        held[-size:] = True
    return held


def read_held(
    model: nn.Module,
    location: KeyLocation,
    store: Datastore,
    held: Array,
    numbers: Ints,
    progress: Progress,
) -> Held:
    """Runs the model over windows with held-out entries; `numbers` maps tokens, or -1."""
    before = np.concatenate([[0], np.cumsum(held)])
    windows = [
        window
        for window in windows_of(store.contexts, store.manifest.windows)
        if before[window.first_entry + window.entries] > before[window.first_entry]
    ]
    batch = tokens_of_scoring_pass(model)
    states, targets, log_p_lm = [], [], []
    done, total = 0, int(held.sum())
    progress("held-out text", 0, total)
    with evaluating(model):
        for scored in score_pieces(model, location, pieces_of(store, windows), batch):
            inside = torch.from_numpy(held[entry_of_places(store, scored.places)])
            states.append(scored.states.detach().float().cpu()[inside])
            targets.append(scored.targets[inside])
            log_p_lm.append(scored.log_p_lm[inside])
            done += int(inside.sum())
            progress("held-out text", done, total)
    tokens = torch.cat(targets)
    return Held(torch.cat(states), torch.from_numpy(numbers)[tokens], tokens, torch.cat(log_p_lm))


def check_enough(entries: int) -> None:
    if entries < FEWEST_CALIBRATED:
        raise CorpusError(
            f"the corpus has {entries} tokens to predict, but a learned memory needs "
            f"{FEWEST_CALIBRATED}: add more text"
        )


@dataclass(frozen=True)
class Learnt:
    """Rows that have learnt, as they are stored."""

    rows: Array  # float16 [rows, dim]
    tokens: Array  # int32 [rows], ascending
    settings: SettingsRecord  # that the held-out text chose
    record: LearnedRecord


def learn(
    model: nn.Module,
    location: KeyLocation,
    corpus: Datastore,
    *,
    rows: float,
    epochs: int,
    seed: int,
    progress: Progress,
) -> Learnt:
    """Learns `rows` rows for each different token of a corpus, whose keys are stored."""
    away = held_out(corpus, seed)
    learning = ~away
    learning[corpus.removed_entries] = False
    entries = np.flatnonzero(learning)
    values = corpus.values.numpy()
    entries = entries[np.argsort(values[entries], kind="stable")]
    tokens, order, counts = np.unique(values[entries], return_index=True, return_counts=True)
    numbers = np.full(vocabulary_size(model), -1, np.int64)
    numbers[tokens] = np.arange(len(tokens))
    held = read_held(model, location, corpus, away, numbers, progress)
    allotted = allot(counts.astype(np.int64), max(len(tokens), round(rows * len(tokens))))
    random = np.random.default_rng(seed)
    start, variance = centers(corpus, entries, order, allotted, random, progress)
    learner = Rows(start.to(input_device(model)), allotted, epochs * -(-len(entries) // _BATCH))
    learner.begin(best_scale(learner, held, variance))
    best, read = _train(learner, corpus, entries, numbers, held, epochs, random, progress)
    stored = best.half()
    row_tokens = torch.from_numpy(np.repeat(tokens, allotted))
    settings, lm, perplexity = _settings(stored.float(), row_tokens, held, progress)
    return Learnt(
        stored.numpy(),
        row_tokens.numpy().astype(np.int32),
        settings,
        LearnedRecord(
            rows=rows,
            entries=len(entries),
            documents=len(corpus.documents) - len(corpus.manifest.removed),
            epochs=read,
            held_out=len(held.targets),
            perplexity_lm=lm,
            perplexity=perplexity,
        ),
    )


def _train(
    learner: Rows,
    corpus: Datastore,
    entries: Ints,
    numbers: Ints,
    held: Held,
    epochs: int,
    random: np.random.Generator,
    progress: Progress,
) -> tuple[Tensor, float]:
    """Reads the corpus until the held-out text is predicted best; the rows, and how often."""
    device = learner.rows.device
    targets = torch.from_numpy(numbers[corpus.values.numpy()[entries]])
    best, least, read, waited = learner.rows.cpu().clone(), learner.perplexity(held), 0.0, 0
    parts = np.linspace(0, len(entries), _TESTS + 1).astype(int)
    done = 0
    for epoch in range(epochs):
        shuffled = random.permutation(len(entries))
        for number, (start, end) in enumerate(pairwise(parts)):
            for first in range(start, end, _BATCH):
                batch = np.sort(shuffled[first : min(end, first + _BATCH)])
                states = torch.from_numpy(corpus.keys(entries[batch]).astype(np.float32)).to(device)
                learner.learn(states, targets[torch.from_numpy(batch)].to(device))
                done += len(batch)
                progress("rows", done, epochs * len(entries))
            perplexity, now = learner.perplexity(held), epoch + (number + 1) / _TESTS
            waited += 1
            logger.debug("epoch %.1f: held-out perplexity %.2f", now, perplexity)
            if perplexity < least:
                best, least, waited, read = learner.rows.cpu().clone(), perplexity, 0, now
            if waited >= _PATIENCE:
                return best, read
    return best, read


def _settings(
    rows: Tensor, tokens: Tensor, held: Held, progress: Progress
) -> tuple[SettingsRecord, float, float]:
    """Chooses settings; also the perplexity of the model alone and of the mixture."""
    index = ExactIndex(rows, LEARNED_METRIC)
    k = min(_LARGEST_K, len(rows))
    ks = powers_up_to(k, min(k, _SMALLEST_K))
    likelihood = GridLikelihood(Grid(ks, _TEMPERATURES, LMBDAS))
    for first in range(0, len(held.targets), _BATCH):
        progress("settings", first, len(held.targets))
        part = slice(first, first + _BATCH)
        similarities, ids = index.search(held.states[part], k)
        neighbors = Neighbors(ids, similarities, tokens[ids].long(), LEARNED_METRIC)
        likelihood.add(neighbors, held.targets[part], held.log_p_lm[part])
    progress("settings", len(held.targets), len(held.targets))
    best = likelihood.best(_K_TOLERANCE)
    settings = SettingsRecord(
        k=best.k, lmbda=best.lmbda, temperature=float(f"{best.temperature:.4g}"), calibrated=True
    )
    return settings, float(np.exp(-likelihood.lm / likelihood.tokens)), best.perplexity


def allot(counts: Ints, rows: int) -> Ints:
    """Rows of each token, int64 [tokens]: one to its count, by its frequency to the power 3/4."""
    weights = counts.astype(np.float64) ** _POWER

    def at(scale: float) -> Ints:
        scaled: Ints = np.maximum(1, np.floor(scale * weights)).astype(np.int64)
        return np.minimum(counts, scaled)

    low, high = 0.0, float(counts.max(initial=1))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if int(at(middle).sum()) > rows else (middle, high)
    return at(low)


def centers(
    store: Datastore,
    entries: Ints,
    order: Ints,
    allotted: Ints,
    random: np.random.Generator,
    progress: Progress,
) -> tuple[Tensor, float]:
    """Centers of each token's states, [rows, dim], and the states' mean squared distance."""
    ends = np.append(order[1:], len(entries))
    total = int(allotted.sum())
    rows = torch.empty(total, store.manifest.dim)
    sample = np.sort(random.permutation(entries)[:8192])
    states = torch.from_numpy(store.keys(sample).astype(np.float32))
    mean = states.mean(dim=0)
    variance = float((states - mean).square().sum(dim=-1).mean())
    first = 0
    for token, number in enumerate(allotted.tolist()):
        occurrences = entries[order[token] : ends[token]]
        if len(occurrences) > _STATES_A_ROW * number:
            occurrences = random.choice(occurrences, _STATES_A_ROW * number, replace=False)
        states = torch.from_numpy(store.keys(np.sort(occurrences)).astype(np.float32)) - mean
        place = torch.zeros(len(states), dtype=torch.int64)
        center = states[torch.from_numpy(random.permutation(len(states))[:number])]
        for _ in range(_MOVES if number > 1 else 1):
            if number > 1:
                distances = torch.addmm(center.square().sum(-1), states, center.T, alpha=-2.0)
                place = distances.argmin(dim=-1)
            counts = torch.bincount(place, minlength=number).unsqueeze(-1)
            moved = torch.zeros_like(center).index_add_(0, place, states)
            center = torch.where(counts > 0, moved / counts.clamp(min=1), center)
        rows[first : first + number] = center * (counts / (counts + _DRAWN)).clamp(min=0.3)
        first += number
        progress("centers", first, total)
    return rows, variance
