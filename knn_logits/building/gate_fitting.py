"""Fits the `AdaptiveGate` of a datastore, without labels and without text from the user.

Three kinds of text show what λ should be: documents of the corpus, each left out of the search;
passages of the corpus that a text repeats; and what the model writes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch

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
from knn_logits.measure.text_pass import TokenScores
from knn_logits.mixture.gates.adaptive import MAX_OCCURRENCES, AdaptiveGate
from knn_logits.mixture.gates.adaptive_fitting import (
    CORPUS,
    OWN_TEXT,
    PASSAGE,
    GateTokens,
    fit_adaptive_gate,
    quality,
)
from knn_logits.mixture.gates.stored import gate_arrays
from knn_logits.mixture.vote import Weighing
from knn_logits.progress import counter, no_progress
from knn_logits.search.matches import Matches
from knn_logits.search.neighbors import Neighbors
from knn_logits.search.retriever import Retriever
from knn_logits.search.suffix_index import SuffixIndex
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore
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

# The kind of a text, and the first and the last part of the corpus that its search leaves out.
Group: TypeAlias = tuple[int, int, int]
Search: TypeAlias = Callable[[TokenScores], Neighbors]
# Opens a search that leaves out some entries, int64 [hidden], ascending.
OpenSearch: TypeAlias = Callable[[Array], Search]


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
    steps.progress("texts for the gate", 0, None)
    texts = own_texts(model, steps.tokenizer, seed)
    if not texts:
        return None
    config = KNNConfig.of(settings)
    weighing, open_search = Weighing.of(config), _opened(store, config, index)
    parts = part_of_entries(store)
    suffixes, counts = SuffixIndex(store), [np.bincount(np.asarray(store.tokens))]
    groups = _grouped(_texts(store, texts, parts, np.random.default_rng(seed)))
    count = counter(steps.progress, "gate", sum(map(predicted_tokens, groups.values())))
    found: list[GateTokens] = []
    for (kind, first, last), pieces in groups.items():
        hidden = np.flatnonzero((first <= parts) & (parts <= last))
        search = open_search(hidden)
        left = suffixes.without(hidden) if len(hidden) else suffixes
        matches = Matches([(left, 0)], counts, most=MAX_OCCURRENCES)
        for scores in score_blocks(model, location, pieces, _QUERIES_AT_ONCE, no_progress):
            neighbors = search(scores)
            neighbors = replace(neighbors, occurrences=(matches.find(scores.prefixes),))
            text = torch.from_numpy(scores.places >> _TEXT_BITS)
            for rows, log_p in scores.distributions.parts():
                here = neighbors[rows].to(log_p.device)
                weights, targets = weighing.log_weights(here), scores.targets[rows]
                found.append(GateTokens.of(here, weights, log_p, targets, kind, text[rows]))
            count(len(scores.targets))
    tokens = GateTokens.joined(found)
    metric = store.manifest.metric
    held_out = tokens.text % _FOLDS == 0
    judged = quality(fit_adaptive_gate(tokens[~held_out], metric, seed=seed), tokens[held_out])
    gate = fit_adaptive_gate(tokens, metric, seed=seed)
    steps.job.write("gate", *gate_arrays(gate))
    return GateRecord(kind=AdaptiveGate.kind, tokens=int(held_out.sum()), **vars(judged))


def _opened(store: Datastore, config: KNNConfig, index: Index) -> OpenSearch:
    """Opens searches of a datastore."""
    usual = Retriever(store, config, index=index)
    # Neighbors among the entries that are left out are dropped.
    more = Retriever(store, replace(config, k=OVERSAMPLING * config.k), index=index)

    def open_search(hidden: Array) -> Search:
        if not len(hidden):
            return lambda scores: usual.search(scores.states, scores.prefixes).to("cpu")
        left_out = np.zeros(len(store), bool)
        left_out[hidden] = True

        def search(scores: TokenScores) -> Neighbors:
            found = more.search(scores.states, scores.prefixes).to("cpu")
            dropped = torch.from_numpy(np.take(left_out, found.ids.numpy(), mode="clip"))
            return found.without(dropped | ~found.mask).nearest(config.k)

        return search

    return open_search


def _texts(
    store: Datastore,
    own: Sequence[tuple[list[int], int]],
    parts: Array,
    random: np.random.Generator,
) -> Iterator[tuple[Group, Array, int]]:
    """Yields each text's group, its tokens, and how many of them are context only."""
    tokens, window = np.asarray(store.tokens), store.manifest.windows.window
    ends = np.asarray(store.documents.first) + np.asarray(store.documents.length)
    for first, skip in _drawn_places(store, random):
        end = min(first + _piece_tokens(store) + 1, ends[store.documents.at_token(first)])
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


def _grouped(texts: Iterable[tuple[Group, Array, int]]) -> dict[Group, list[Piece]]:
    """Numbers texts, and groups those that share a search."""
    groups: dict[Group, list[Piece]] = {}
    for number, (group, tokens, skip) in enumerate(texts):
        groups.setdefault(group, []).append(Piece(tokens, skip, number << _TEXT_BITS))
    return groups


def _piece_tokens(store: Datastore) -> int:
    """The number of tokens of a piece: a quarter of the corpus at most, and no more than a pass."""
    quarter = max(_READ_TOKENS, store.manifest.tokens // 4)
    return min(_PIECE_TOKENS, store.manifest.windows.window, quarter)


def _drawn_places(store: Datastore, random: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Draws pieces of documents: where each begins, and how many of its tokens are context only."""
    size = _piece_tokens(store)
    context = min(_CONTEXT_TOKENS, size // 2)
    removed = set(store.manifest.removed)
    spans = zip(store.documents.first, store.documents.length, strict=True)
    places = [
        (int(first) + place, context if place else 0, min(size, int(length) - place))
        for number, (first, length) in enumerate(spans)
        if number not in removed and length > 2
        for place in range(0, max(1, int(length) - context - 1), size - context)
    ]
    wanted = _corpus_tokens(len(store))
    for number in random.permutation(len(places)).tolist():
        first, skip, tokens = places[number]
        yield first, skip
        wanted -= tokens - skip
        if wanted <= 0:
            return


def _corpus_tokens(entries: int) -> int:
    return min(entries, _MAX_TOKENS, max(_MIN_TOKENS, int(_SHARE * entries)))
