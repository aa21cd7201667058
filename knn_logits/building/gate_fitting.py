"""Fits the `AdaptiveGate` of a datastore, without labels and without text from the user.

Three kinds of text show what λ should be: documents of the corpus, each left out of the search;
passages of the corpus that a text repeats; and what the model writes by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.building.own_texts import own_texts
from knn_logits.building.planning import BuildPlan
from knn_logits.building.settings_choice import (
    OVERSAMPLING,
    part_of_entries,
    predicted_tokens,
    score_blocks,
)
from knn_logits.building.steps import Steps
from knn_logits.engine.windows import Piece
from knn_logits.index.base import Index
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.adaptive import MAX_OCCURRENCES, AdaptiveGate, Ballots, shares_of
from knn_logits.mixture.gates.gate import trained
from knn_logits.mixture.vote import Weighing, log_p_knn_of
from knn_logits.progress import counter, no_progress
from knn_logits.search.matches import Matches, SuffixIndex
from knn_logits.search.neighbors import Neighbors
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import read_arrays
from knn_logits.store.job import Job
from knn_logits.store.records import GateRecord, SettingsRecord

# With fewer entries there is too little text to fit a gate to.
_MIN_ENTRIES = 32
# The number of tokens of the corpus that a gate is fitted to: at least, at most, and as a share of
# the entries.
_MIN_TOKENS, _MAX_TOKENS, _SHARE = 4096, 8192, 1 / 25
# The number of tokens of a piece of a document, and of those that are context only.
_PIECE_TOKENS, _CONTEXT_TOKENS = 256, 32
# The number of passages that are repeated, of their tokens, and of those that are read first: few
# where the passage is the whole text, and more where another text stands before it.
_PASSAGES, _PASSAGE_TOKENS, _READ_TOKENS, _READ_AFTER_TOKENS = 48, 32, 8, 12
# The number of short texts for each piece of a document, of their tokens, and of those that are
# context only.
_BEGINNINGS, _BEGINNING_TOKENS, _BEGINNING_CONTEXT = 6, 16, 3
_QUERIES_AT_ONCE = 128
# One text in this number is left out of a fit, to judge it.
_FOLDS = 4
# The number of a text stands above these bits of its tokens' places.
_TEXT_BITS = 32
_NO_PART = -1
# The weight of the likelihood of passages that a text repeats, and of the model's own text, where
# documents of the corpus, each left out of the search, count as 1.
_PASSAGE_WEIGHT, _OWN_WEIGHT = 0.1, 4.0
# The weight of the log-odds against the model's own choice in its own text, beyond a margin.
_PENALTY, _MARGIN = 0.5, 0.1
# A network's units and training, and how many networks are averaged: the loss of one on unrelated
# text depends on its seed.
_UNITS, _STEPS, _BATCH, _DECAY, _NETWORKS = 16, 1200, 512, 1e-2, 4
_LEAST_P = 1e-9

# The kinds of text that a gate is fitted to.
CORPUS, PASSAGE, OWN_TEXT = 0, 1, 2

# The kind of a text, and the first and the last part of the corpus that its search leaves out.
Group: TypeAlias = tuple[int, int, int]


def write_gate(
    steps: Steps, plan: BuildPlan, store: Datastore, settings: SettingsRecord, index: Index
) -> GateRecord | None:
    """Fits a gate to a datastore, and writes it into a job's folder.

    Returns:
        The gate's record; None for a model that writes no text, or too few entries.
    """
    if len(store) < _MIN_ENTRIES:
        return None
    model, location, seed = steps.model, plan.keys.location, plan.index.seed
    read, about = _saved(steps.job, settings)
    if "texts" not in about:
        steps.progress("texts for the gate", 0, None)
        about["texts"] = json.dumps(own_texts(model, steps.tokenizer, seed))
    texts = json.loads(about["texts"])
    if not texts:
        return None
    config = KNNConfig.of(settings)
    weighing, usual = Weighing.of(config), Retriever(store, config, index=index)
    # Neighbors among the entries that are left out are dropped.
    more = Retriever(store, replace(config, k=OVERSAMPLING * config.k), index=index)
    parts = part_of_entries(store)
    suffixes, counts = SuffixIndex(store), [np.bincount(np.asarray(store.tokens))]
    # Texts are numbered; those that leave out the same parts share a search.
    groups: dict[Group, list[Piece]] = {}
    drawn = _texts(store, texts, parts, np.random.default_rng(seed))
    for number, (group, ids, skip) in enumerate(drawn):
        groups.setdefault(group, []).append(Piece(ids, skip, number << _TEXT_BITS))
    total, before = sum(map(predicted_tokens, groups.values())), sum(len(one.text) for one in read)
    count = counter(steps.progress, "gate", total, before)
    for done, ((kind, first, last), pieces) in enumerate(groups.items()):
        if done < int(about["groups"]):
            continue
        hidden = (first <= parts) & (parts <= last)
        left = suffixes.without(np.flatnonzero(hidden)) if hidden.any() else suffixes
        matches = Matches([(left, 0)], counts, most=MAX_OCCURRENCES)
        for scores in score_blocks(model, location, pieces, _QUERIES_AT_ONCE, no_progress):
            if hidden.any():
                found = more.search(scores.states, scores.prefixes).to("cpu")
                dropped = torch.from_numpy(np.take(hidden, found.ids.numpy(), mode="clip"))
                neighbors = found.without(dropped).nearest(config.k)
            else:
                neighbors = usual.search(scores.states, scores.prefixes).to("cpu")
            neighbors = replace(neighbors, occurrences=(matches.find(scores.prefixes),))
            text = torch.from_numpy(scores.places >> _TEXT_BITS)
            for rows, log_p in scores.distributions.parts():
                here = neighbors[rows].to(log_p.device)
                weights, targets = weighing.log_weights(here), scores.targets[rows]
                read.append(_tokens_of(here, weights, log_p, targets, kind, text[rows]))
            count(len(scores.targets))
        read, about["groups"] = [GateTokens.joined(read)], str(done + 1)
        arrays = {name: np.asarray(values) for name, values in vars(read[0]).items()}
        steps.job.write("gate", arrays, about)
    tokens = GateTokens.joined(read)
    metric = store.manifest.metric
    held_out = tokens.text % _FOLDS == 0
    judged = quality(fit_adaptive_gate(tokens[~held_out], metric, seed=seed), tokens[held_out])
    gate = fit_adaptive_gate(tokens, metric, seed=seed)
    steps.job.write("gate", gate.to_arrays(), gate.about)
    return judged


def _saved(job: Job, settings: SettingsRecord) -> tuple[list[GateTokens], dict[str, str]]:
    """The tokens that an interrupted fit under the same settings has read, and its texts.

    They are kept where the gate will stand.
    """
    about = {"settings": settings.model_dump_json(), "groups": "0"}
    if job.file("gate") is not None:
        arrays, saved = read_arrays(job.path("gate"))
        if saved.get("settings") == about["settings"]:
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            return [GateTokens(**tensors)], saved
    return [], about


def _texts(
    store: Datastore,
    own: Sequence[tuple[list[int], int]],
    parts: Array,
    random: np.random.Generator,
) -> Iterator[tuple[Group, Array, int]]:
    """Yields each text's group, its tokens, and how many of them are context only."""
    tokens, window = np.asarray(store.tokens), store.manifest.windows.window
    ends = np.asarray(store.documents.first) + np.asarray(store.documents.length)
    for first, skip, end in _drawn_places(store, random):
        # An entry's token follows at least one token of its document.
        entries = store.contexts.entries_of(np.array([first + 1, end - 1]), np.ones(2, np.int64))
        left_out = parts[entries].tolist()
        group = CORPUS, left_out[0], left_out[1]
        yield group, tokens[first:end], skip
        # A prompt is short: the same words with little before them.
        for start in _beginnings(store, first, end, random):
            text = tokens[start : min(start + _BEGINNING_TOKENS, end)][: window + 1]
            if len(text) > _BEGINNING_CONTEXT + 1:
                yield group, text, _BEGINNING_CONTEXT
    places = random.integers(0, len(tokens) - _READ_TOKENS, _PASSAGES).tolist()
    for number, first in enumerate(places):
        end = min(first + _PASSAGE_TOKENS, ends[store.documents.at_token(first)])
        before, read = np.empty(0, tokens.dtype), _READ_TOKENS
        if number % 2:
            before = np.array(own[number % len(own)][0][-_PASSAGE_TOKENS:], tokens.dtype)
            read = _READ_AFTER_TOKENS
        text = np.concatenate([before, tokens[first:end]])[: window + 1]
        if len(text) > len(before) + read:
            yield (PASSAGE, _NO_PART, _NO_PART), text, len(before) + read - 1
    for ids, given in own:
        if len(ids) > max(given, 2):
            # The state after the first token may be an attention sink.
            yield (OWN_TEXT, _NO_PART, _NO_PART), np.array(ids, tokens.dtype), max(given - 1, 1)


def _beginnings(
    store: Datastore, first: int, end: int, random: np.random.Generator
) -> Sequence[int]:
    """Draws places where short texts begin: where blocks begin, or anywhere without blocks."""
    number = store.documents.at_token(first)
    offset = int(store.documents.first[number])
    last = max(first + 1, end - _BEGINNING_TOKENS)
    blocks = [offset + block.start for block in store.documents[number].blocks]
    starts = [start for start in blocks if first <= start < last] or list(range(first, last))
    chosen = random.choice(starts, min(_BEGINNINGS, len(starts)), replace=False)
    return [int(start) for start in chosen]


def _drawn_places(store: Datastore, random: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    """Draws pieces of documents: where each begins, its tokens that are context only, its end."""
    # A piece is a quarter of the corpus at most, and no more than a pass.
    quarter = max(_READ_TOKENS, store.manifest.tokens // 4)
    size = min(_PIECE_TOKENS, store.manifest.windows.window, quarter)
    context = min(_CONTEXT_TOKENS, size // 2)
    removed = set(store.manifest.removed)
    spans = zip(store.documents.first, store.documents.length, strict=True)
    places = [
        (int(first) + place, context if place else 0, int(length) - place)
        for number, (first, length) in enumerate(spans)
        if number not in removed and length > 2
        for place in range(0, max(1, int(length) - context - 1), size - context)
    ]
    wanted = min(len(store), _MAX_TOKENS, max(_MIN_TOKENS, int(_SHARE * len(store))))
    for number in random.permutation(len(places)).tolist():
        first, skip, rest = places[number]
        yield first, skip, first + min(size + 1, rest)
        wanted -= min(size, rest) - skip
        if wanted <= 0:
            return


@dataclass(frozen=True)
class GateTokens(Ballots):
    """The ballots at tokens of texts, and these tokens, to fit or judge an `AdaptiveGate` on."""

    p: Tensor  # float32 [tokens, 3, 3], the probability of each favorite by each of the three
    target: Tensor  # int64 [tokens], the token that follows
    p_target: Tensor  # float32 [tokens, 3], its probability by model, neighbors and match
    kind: Tensor  # int64 [tokens], CORPUS, PASSAGE or OWN_TEXT
    text: Tensor  # int64 [tokens], the number of the text

    def __getitem__(self, rows: Tensor) -> GateTokens:
        return GateTokens(*(values[rows] for values in vars(self).values()))

    @classmethod
    def joined(cls, parts: Iterable[GateTokens]) -> GateTokens:
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))


def _tokens_of(
    neighbors: Neighbors,
    log_weights: Tensor,
    log_p_lm: Tensor,
    target: Tensor,
    kind: int,
    text: Tensor,
) -> GateTokens:
    """Reads what was found for some tokens; `log_p_lm` is [tokens, vocabulary]."""
    ballots = Ballots.of(neighbors, log_weights, log_p_lm)
    target = target.to(log_p_lm.device)
    match = neighbors.occurrences[0]
    # Where nothing was found, the model's own favorite stands.
    favorites = ballots.tokens
    favorites[:, 1:] = torch.where(ballots.found, favorites[:, 1:], favorites[:, :1])
    asked = torch.cat([favorites, target[:, None]], dim=-1)
    log_p = [
        log_p_lm.gather(-1, asked),
        log_p_knn_of(log_weights, neighbors.values, asked),
        log_p_knn_of(match.log_weights, match.values, asked),
    ]
    p = torch.stack(log_p, dim=-1).exp().cpu()
    return GateTokens(
        **{name: values.cpu() for name, values in vars(ballots).items()},
        p=p[:, :3],
        target=target.cpu(),
        p_target=p[:, 3],
        kind=torch.full((len(target),), kind),
        text=text,
    )


def _mixed(shares: Tensor, p: Tensor) -> Tensor:
    """The mixture of p, [..., 3], under λ and s, [..., 2]."""
    lmbda, share = shares.unbind(-1)
    lm, knn, match = p.unbind(-1)
    return share * match + (1.0 - share) * (lmbda * knn + (1.0 - lmbda) * lm)


def fit_adaptive_gate(tokens: GateTokens, metric: Metric, *, seed: int = 0) -> AdaptiveGate:
    """Fits an `AdaptiveGate` to tokens of each kind.

    It maximizes the likelihood of all tokens. For the model's own text it also penalizes a mixture
    that chooses another token than the model.
    """
    weights = torch.zeros(len(tokens.target), dtype=torch.float32)
    for kind, weight in ((CORPUS, 1.0), (PASSAGE, _PASSAGE_WEIGHT), (OWN_TEXT, _OWN_WEIGHT)):
        rows = tokens.kind == kind
        weights[rows] = weight * len(weights) / max(1, int(rows.sum()))
    others = tokens.tokens != tokens.tokens[:, :1]

    def loss(logits: Tensor, batch: Tensor) -> Tensor:
        rows = tokens[batch]
        shares = shares_of(logits) * rows.found
        likelihood = _mixed(shares, rows.p_target).clamp(min=_LEAST_P).log()
        favorites = _mixed(shares[..., None, :], rows.p).clamp(min=_LEAST_P).log()
        lost = favorites - favorites[..., :1] + _MARGIN
        lost = lost.masked_fill(~others[batch], 0.0).clamp(min=0.0).amax(-1)
        penalty = _PENALTY * lost * (rows.kind == OWN_TEXT)
        return (weights[batch] * (penalty - likelihood)).mean()

    arrays = trained(
        np.asarray(tokens.features),
        loss,
        units=_UNITS,
        steps=_STEPS,
        batch=_BATCH,
        decay=_DECAY,
        seed=seed,
        outputs=2,
        networks=_NETWORKS,
    )
    return AdaptiveGate(metric, arrays)


def quality(gate: AdaptiveGate, tokens: GateTokens) -> GateRecord:
    shares = gate.at(tokens.features) * tokens.found
    gain = _mixed(shares, tokens.p_target).clamp(min=_LEAST_P).log()
    gain = gain - tokens.p_target[:, 0].clamp(min=_LEAST_P).log()
    best = _mixed(shares[:, None], tokens.p).argmax(-1, keepdim=True)
    chosen = tokens.tokens.gather(-1, best)[:, 0]

    def mean(values: Tensor, kind: int) -> float:
        return round(float(values[tokens.kind == kind].double().mean().nan_to_num(0.0)), 4)

    return GateRecord(
        kind=gate.kind,
        tokens=len(tokens.target),
        gain=mean(gain, CORPUS),
        kept=mean(chosen == tokens.tokens[:, 0], OWN_TEXT),
        followed=mean(chosen == tokens.target, PASSAGE),
    )
