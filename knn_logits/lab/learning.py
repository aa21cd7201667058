"""Learning rows from a corpus: what is held out, how long to learn, which settings to keep."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array, Ints
from knn_logits.engine.compatibility import vocabulary_size
from knn_logits.engine.forward import input_device
from knn_logits.engine.location import KeyLocation
from knn_logits.errors import CorpusError
from knn_logits.index.exact import ExactIndex
from knn_logits.lab.learned_rows import (
    Held,
    Rows,
    Shares,
    best_scale,
    held_out,
    read_held,
    shares_by,
)
from knn_logits.measure.likelihood import LMBDAS, Grid, GridLikelihood
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
    teacher: Datastore | None,
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
    shares = None
    if teacher is not None:
        shares = shares_by(teacher, corpus, entries, away, numbers, progress)
    learner = Rows(start.to(input_device(model)), allotted, epochs * -(-len(entries) // _BATCH))
    learner.begin(best_scale(learner, held, variance))
    best, read = _train(learner, corpus, entries, numbers, shares, held, epochs, random, progress)
    stored = best.half()
    row_tokens = torch.from_numpy(np.repeat(tokens, allotted))
    settings, lm, perplexity = _settings(stored.float(), row_tokens, held, progress)
    return Learnt(
        stored.numpy(),
        row_tokens.numpy().astype(np.int32),
        settings,
        LearnedRecord(
            rows=rows,
            targets="tokens" if teacher is None else "neighbors",
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
    shares: Shares | None,
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
                if shares is None:
                    learner.learn(states, targets[torch.from_numpy(batch)].to(device))
                else:
                    tokens = torch.from_numpy(shares.tokens[batch]).long().to(device)
                    share = torch.from_numpy(shares.shares[batch]).to(device)
                    learner.learn_shares(states, tokens, share)
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
