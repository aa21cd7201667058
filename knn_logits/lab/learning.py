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
    part_of_entries,
    pieces_of,
    sample_size,
    score_blocks,
)
from knn_logits.engine.forward import input_device
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import windows_of
from knn_logits.index.exact import ExactIndex
from knn_logits.measure.likelihood import LMBDAS, Grid, GridLikelihood
from knn_logits.metrics import LEARNED_METRIC
from knn_logits.mixture.vote import mix_row
from knn_logits.progress import Progress, counter
from knn_logits.search.neighbors import Neighbors, powers_up_to
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
_SCALED_TOKENS = 1024
# No more than this share of the corpus is held out.
_MAX_HELD_OUT = 0.1


@dataclass(frozen=True)
class Held:
    """Tokens that the rows are not learnt from."""

    states: Tensor  # float32 [tokens, dim]
    targets: Tensor  # int64 [tokens]
    log_p_lm: Tensor  # float32 [tokens]


@dataclass(frozen=True)
class Rows:
    """Rows of tokens."""

    rows: Tensor  # float32 [rows, dim]
    tokens: Tensor  # int64 [rows], the token of each, on the same device

    def log_p(self, states: Tensor, targets: Tensor, scale: float = 1.0) -> Tensor:
        """Computes log p of a token after each state, float32 [states]; -inf without a row."""
        scores = scale * (states @ self.rows.T)
        own = scores.masked_fill(self.tokens != targets[:, None], -math.inf)
        return own.logsumexp(dim=-1) - scores.logsumexp(dim=-1)

    @torch.no_grad()
    def perplexity(self, held: Held, scale: float = 1.0) -> float:
        """The perplexity of other tokens under the mixture, at the best λ, for scaled rows."""
        device = self.rows.device
        parts = zip(held.states.split(_BATCH), held.targets.split(_BATCH), strict=True)
        log_p_knn = torch.cat(
            [self.log_p(one.to(device), targets.to(device), scale).cpu() for one, targets in parts]
        )
        log_p = mix_row(held.log_p_lm, log_p_knn, torch.tensor(LMBDAS)[:, None])
        return math.exp(-float(log_p.double().mean(dim=-1).max()))


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
    model: nn.Module, location: KeyLocation, store: Datastore, held: Array, progress: Progress
) -> Held:
    before = np.concatenate([[0], np.cumsum(held)])
    windows = [
        window
        for window in windows_of(store.contexts, store.manifest.windows)
        if before[window.first_entry + window.entries] > before[window.first_entry]
    ]
    states, targets, log_p_lm = [], [], []
    for scored in score_blocks(model, location, pieces_of(store, windows), 1 << 30, progress):
        inside = torch.from_numpy(held[store.contexts.entries_at(scored.places)])
        states.append(scored.states.detach().float().cpu()[inside])
        targets.append(scored.targets[inside])
        log_p_lm.append(scored.log_p_lm[inside])
    return Held(torch.cat(states), torch.cat(targets), torch.cat(log_p_lm))


def learn(
    model: nn.Module,
    location: KeyLocation,
    corpus: Datastore,
    *,
    rows: float,
    epochs: int,
    seed: int,
    progress: Progress,
) -> tuple[Array, Array, SettingsRecord, LearnedRecord]:
    """Learns `rows` rows for each different token of a corpus, whose keys are stored."""
    away = held_out(corpus, seed)
    learning = ~away
    learning[corpus.removed_entries] = False
    entries = np.flatnonzero(learning)
    values = corpus.values.numpy()
    entries = entries[np.argsort(values[entries], kind="stable")]
    tokens, order, counts = np.unique(values[entries], return_index=True, return_counts=True)
    held = read_held(model, location, corpus, away, progress)
    allotted = allot(counts.astype(np.int64), max(len(tokens), round(rows * len(tokens))))
    random = np.random.default_rng(seed)
    start, variance = centers(corpus, entries, order, allotted, random, progress)
    row_tokens = torch.from_numpy(np.repeat(tokens, allotted)).long()
    device = input_device(model)
    learner = Rows(start.to(device), row_tokens.to(device))
    # The factor at which centers of states predict other tokens best.
    few = Held(*(values[:_SCALED_TOKENS] for values in vars(held).values()))
    scales = [2.0**power / variance for power in range(1, 8)]
    best_scale = min(scales, key=lambda scale: learner.perplexity(few, scale))
    learner.rows.mul_(best_scale).requires_grad_()
    best, read = _train(learner, corpus, entries, held, epochs, random, progress)
    stored = best.half()
    settings, lm, perplexity = _settings(stored.float(), row_tokens, held, progress)
    record = LearnedRecord(
        rows=rows,
        entries=len(entries),
        documents=len(corpus.documents) - len(corpus.manifest.removed),
        epochs=read,
        held_out=len(held.targets),
        perplexity_lm=lm,
        perplexity=perplexity,
    )
    return stored.numpy(), row_tokens.numpy().astype(np.int32), settings, record


def _train(
    learner: Rows,
    corpus: Datastore,
    entries: Ints,
    held: Held,
    epochs: int,
    random: np.random.Generator,
    progress: Progress,
) -> tuple[Tensor, float]:
    """Reads the corpus until the held-out text is predicted best; the rows, and how often."""
    rows = learner.rows
    steps = epochs * -(-len(entries) // _BATCH)
    adam = torch.optim.Adam([rows], _STEP * float(rows.detach().square().mean().sqrt()), _DECAYS)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: max(0.05, 1.0 - step / steps))
    best, least, read, waited = rows.detach().cpu().clone(), learner.perplexity(held), 0.0, 0
    parts = np.linspace(0, len(entries), _TESTS + 1).astype(int)
    advance = counter(progress, "rows", epochs * len(entries))
    for epoch in range(epochs):
        shuffled = random.permutation(len(entries))
        for number, (start, end) in enumerate(pairwise(parts)):
            for first in range(start, end, _BATCH):
                batch = entries[np.sort(shuffled[first : min(end, first + _BATCH)])]
                states = torch.from_numpy(corpus.keys(batch).astype(np.float32)).to(rows.device)
                targets = corpus.values[torch.from_numpy(batch)].long().to(rows.device)
                adam.zero_grad()
                learner.log_p(states, targets).mean().neg().backward()
                adam.step()
                schedule.step()
                advance(len(batch))
            perplexity, now = learner.perplexity(held), epoch + (number + 1) / _TESTS
            waited += 1
            logger.debug("epoch %.1f: held-out perplexity %.2f", now, perplexity)
            if perplexity < least:
                best, least, waited, read = rows.detach().cpu().clone(), perplexity, 0, now
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
    advance = counter(progress, "settings", len(held.targets))
    for first in range(0, len(held.targets), _BATCH):
        part = slice(first, first + _BATCH)
        similarities, ids = index.search(held.states[part], k)
        neighbors = Neighbors(ids, similarities, tokens[ids].long(), LEARNED_METRIC)
        likelihood.add(neighbors, held.targets[part], held.log_p_lm[part])
        advance(len(ids))
    best = likelihood.best(_K_TOLERANCE)
    settings = SettingsRecord(
        k=best.k, lmbda=best.lmbda, temperature=float(f"{best.temperature:.4g}"), calibrated=True
    )
    return settings, likelihood.lm_perplexity, best.perplexity


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
