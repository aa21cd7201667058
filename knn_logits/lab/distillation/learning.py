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
from knn_logits.lab.distillation.allotment import allot
from knn_logits.lab.distillation.beginning import centers
from knn_logits.lab.distillation.held import held_out, read_held
from knn_logits.lab.distillation.targets import Shares, shares_by
from knn_logits.lab.distillation.training import Held, Rows, best_scale
from knn_logits.measure.likelihood import LMBDAS, Grid, GridLikelihood
from knn_logits.progress import Progress
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.settings.config import FEWEST_CALIBRATED
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import LearnedRecord, SettingsRecord

logger = logging.getLogger(__name__)

_BATCH = 256
# The held-out text is asked so many times an epoch; learning ends after so many without a gain.
_ASKED, _PATIENCE = 2, 3
_SMALLEST_K, _K_TOLERANCE = 64, 0.002
# The softmax is over all rows when they learn. With 12,843 rows, the 1,024 likeliest alone cost 8%.
_LARGEST_K = 4096
# Rows are learnt at temperature 1. A memory that learnt its corpus too well needs a higher one.
_TEMPERATURES = tuple(2.0 ** (step / 4) for step in range(-2, 9))


def check_enough(entries: int) -> None:
    """Refuses a corpus that is too small to hold a part of it out.

    Raises:
        CorpusError: when it has too few entries.
    """
    if entries < FEWEST_CALIBRATED:
        raise CorpusError(
            f"the corpus has {entries} tokens to predict, and a learned memory needs "
            f"{FEWEST_CALIBRATED}: give more text"
        )


@dataclass(frozen=True)
class Learnt:
    """Rows that have learnt, as they are stored.

    Attributes:
        rows: float16 [rows, dim].
        tokens: int32 [rows], ascending.
        settings: k, λ and the temperature that the held-out text chose.
        record: How they were learnt.
    """

    rows: Array
    tokens: Array
    settings: SettingsRecord
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
    """Learns the rows.

    Args:
        model: The model, in evaluation mode.
        location: Where the key is.
        corpus: A datastore of the corpus, with its keys. Its manifest need not be written yet.
        teacher: A datastore whose distributions are learnt as well; None for none.
        rows: Rows for each different token, on average.
        epochs: How often the corpus is read, at most.
        seed: Seed of every random choice.
        progress: Told how far the work is.
    """
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
    found, mean, variance = centers(corpus, entries, order, allotted, random, progress)
    del mean
    device = input_device(model)
    shares = None
    if teacher is not None:
        shares = shares_by(teacher, corpus, entries, away, numbers, progress)
    learner = Rows(found.to(device), allotted, epochs * -(-len(entries) // _BATCH))
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
    """Reads the corpus again and again, until the held-out text is predicted best.

    Returns:
        float32 [rows, dim] on the CPU, the rows at that moment, and how often the corpus was read
        until then.
    """
    device = learner.rows.device
    targets = torch.from_numpy(numbers[corpus.values.numpy()[entries]])
    best, least, read, waited = learner.rows.cpu().clone(), learner.perplexity(held), 0.0, 0
    parts = np.linspace(0, len(entries), _ASKED + 1).astype(int)
    done = 0
    for epoch in range(epochs):
        shuffled = random.permutation(len(entries))
        for number, (start, end) in enumerate(pairwise(parts)):
            for first in range(start, end, _BATCH):
                some = np.sort(shuffled[first : min(end, first + _BATCH)])
                states = torch.from_numpy(corpus.keys(entries[some]).astype(np.float32)).to(device)
                if shares is None:
                    learner.learn(states, targets[torch.from_numpy(some)].to(device))
                else:
                    theirs = torch.from_numpy(shares.tokens[some]).long().to(device)
                    learner.learn_shares(
                        states, theirs, torch.from_numpy(shares.shares[some]).to(device)
                    )
                done += len(some)
                progress("rows", done, epochs * len(entries))
            found = learner.perplexity(held)
            waited += 1
            logger.debug("epoch %.1f: held-out perplexity %.2f", epoch + (number + 1) / 2, found)
            if found < least:
                best, least, waited = learner.rows.cpu().clone(), found, 0
                read = epoch + (number + 1) / _ASKED
            if waited >= _PATIENCE:
                return best, read
    return best, read


def _settings(
    rows: Tensor, tokens: Tensor, held: Held, progress: Progress
) -> tuple[SettingsRecord, float, float]:
    """Chooses k, λ and the temperature by the likelihood of the held-out text.

    Returns:
        The settings, and the perplexity of the text under the model alone and under the mixture.
    """
    index = ExactIndex(rows, "ip")
    k = min(_LARGEST_K, len(rows))
    ks = powers_up_to(k, min(k, _SMALLEST_K))
    likelihood = GridLikelihood(Grid(ks, _TEMPERATURES, LMBDAS))
    for first in range(0, len(held.targets), _BATCH):
        progress("settings", first, len(held.targets))
        some = slice(first, first + _BATCH)
        similarities, ids = index.search(held.states[some], k)
        found = Neighbors(ids, similarities, tokens[ids].long(), "ip", every_row=True)
        likelihood.add(found, held.targets[some], held.log_p_lm[some])
    progress("settings", len(held.targets), len(held.targets))
    best = likelihood.best(_K_TOLERANCE)
    settings = SettingsRecord(
        k=best.k,
        lmbda=best.lmbda,
        temperature=float(f"{best.temperature:.4g}"),
        calibrated=True,
    )
    return settings, float(np.exp(-likelihood.lm / likelihood.tokens)), best.perplexity
