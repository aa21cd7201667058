"""Chooses λ, temperature and k on a sample of a datastore's own text."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.building.planning import BuildPlan
from knn_logits.building.steps import Steps
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.pairs import PairTokenizer
from knn_logits.engine.windows import Piece, TextWindow, windows_of
from knn_logits.index.base import Index
from knn_logits.measure.likelihood import LMBDAS, Grid, GridLikelihood, spread, temperatures_around
from knn_logits.measure.text_pass import TokenScores, score_pieces, tokens_of_scoring_pass
from knn_logits.mixture.vote import Weighing
from knn_logits.progress import Progress, counter
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.search.retriever import Retriever, SharedTokens
from knn_logits.settings.config import DEFAULT_K, FEWEST_CALIBRATED, KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import SettingsRecord

logger = logging.getLogger(__name__)

# The least and the most tokens that settings are chosen on. A small datastore has fewer.
_MIN_TOKENS, _MAX_TOKENS = 1024, 8192
# At most one token in this number is used, so that this costs less than a tenth of the build.
_SHARE = 25
# Oversample: neighbors from the query's own document are dropped, since new text has none there.
OVERSAMPLING = 4
# A document with a larger share of all tokens than this is treated as several parts.
_LARGEST_SHARE, _PARTS = 0.5, 20
_SMALLEST_K = 64
# A smaller k searches faster. It is taken where it costs no more perplexity than this share.
_K_TOLERANCE = 0.002
_QUERIES_AT_ONCE = 128
# With 1 the text before an entry does not matter. From 2 to 8 perplexity differs little
# (docs/research/settings.md).
_SUFFIX_WEIGHTS = (1.0, 4.0)

# A written text that repeats n tokens at once loops. n is the least for which n-grams hardly ever
# repeat within this number of tokens of the datastore.
_REPEATED, _REPEATED_WITHIN, _PLACES = 0.02, 256, 64
_NGRAMS = (4, 6, 8, 10, 12, 16, 20, 24, 32)


def choose_settings(
    steps: Steps, plan: BuildPlan, store: Datastore, index: Index, default: SettingsRecord
) -> SettingsRecord:
    """Chooses the settings that are not fixed so that a datastore predicts its text best."""
    fixed, location = plan.fixed, plan.keys.location
    if {"k", "lmbda", "temperature"} <= fixed.keys():
        return default
    pieces = sample_pieces(store, plan.index.seed, plan.keys.pairs)
    if predicted_tokens(pieces) < FEWEST_CALIBRATED:
        return default
    largest = fixed.get("k") or DEFAULT_K
    retriever = Retriever(store, KNNConfig(k=min(len(store), OVERSAMPLING * largest)), index=index)
    parts = part_of_entries(store)
    tokens = SharedTokens(store.tokens, store.documents.first, store.contexts.first)
    weight = fixed.get("suffix_weight")
    likelihoods: dict[float, GridLikelihood] = {}
    for scores in score_blocks(steps.model, location, pieces, _QUERIES_AT_ONCE, steps.progress):
        query_parts = torch.from_numpy(parts[store.contexts.entries_at(scores.places)])
        found = without_part(retriever.search(scores.states).to("cpu"), query_parts, parts)
        if not likelihoods:
            # The first tokens decide which temperatures are tried.
            k, lmbda, warm = fixed.get("k"), fixed.get("lmbda"), fixed.get("temperature")
            grid = Grid(
                (k,) if k else powers_up_to(largest, _SMALLEST_K),
                (warm,) if warm else temperatures_around(spread(found), default.temperature),
                LMBDAS[2:] if lmbda is None else (lmbda,),
            )
            likelihoods = {
                one: GridLikelihood(grid, Weighing(1.0, suffix_weight=one))
                for one in ((weight,) if weight else _SUFFIX_WEIGHTS)
            }
        found = replace(found, shared=tokens.count(found.ids, scores.prefixes))
        for likelihood in likelihoods.values():
            likelihood.add(found, scores.targets, scores.log_p_lm)
    best_of = {one: likelihood.best(_K_TOLERANCE) for one, likelihood in likelihoods.items()}
    weight, best = min(best_of.items(), key=lambda choice: choice[1].perplexity)
    chosen = {
        # A k above the number of entries costs nothing, and the datastore may grow.
        "k": best.k if best.k < len(store) else default.k,
        "lmbda": best.lmbda,
        "temperature": fixed.get("temperature") or float(f"{best.temperature:.4g}"),
        "suffix_weight": weight,
        "calibrated": True,
    }
    logger.debug("calibrated on %d tokens: %s", predicted_tokens(pieces), chosen)
    return default.model_copy(update=chosen)


def predicted_tokens(pieces: Sequence[Piece]) -> int:
    return sum(piece.size - piece.skip for piece in pieces)


def score_blocks(
    model: nn.Module, location: KeyLocation, pieces: list[Piece], rows: int, progress: Progress
) -> Iterator[TokenScores]:
    batch = tokens_of_scoring_pass(model)
    count = counter(progress, "calibration", predicted_tokens(pieces))
    with evaluating(model):
        for scores in score_pieces(model, location, pieces, batch):
            for first in range(0, len(scores.targets), rows):
                block = scores[first : first + rows]
                yield block
                count(len(block.targets))


def sample_size(entries: int) -> int:
    """Number of tokens that a datastore is calibrated on, by its number of entries."""
    return min(entries, _MAX_TOKENS, max(_MIN_TOKENS, entries // _SHARE))


def sample_pieces(store: Datastore, seed: int, pairs: PairTokenizer | None = None) -> list[Piece]:
    """Draws whole windows of a datastore's text at random, with their sources if it has pairs."""
    windows = windows_of(store.contexts, store.manifest.windows)
    drawn, left = [], sample_size(len(store))
    for number in np.random.default_rng(seed).permutation(len(windows)).tolist():
        if left <= 0:
            break
        left -= windows[number].entries
        drawn.append(windows[number])
    return pieces_of(store, sorted(drawn, key=lambda window: window.start), pairs)


def pieces_of(
    store: Datastore, windows: Sequence[TextWindow], pairs: PairTokenizer | None = None
) -> list[Piece]:
    """Returns windows of a datastore's text with their tokens, and with their sources."""
    sources: list[Array] | list[None] = [None] * len(windows)
    if pairs is not None:
        sources = pairs.sources(store.documents.sources([window.context for window in windows]))
    return [
        Piece(
            np.asarray(store.tokens[window.start : window.start + window.size + 1]),
            window.skip,
            window.start,
            source,
        )
        for window, source in zip(windows, sources, strict=True)
    ]


def part_of_entries(store: Datastore) -> Array:
    """The part of the text of each entry, int32: a document, or a twentieth of a huge one."""
    tokens = store.manifest.tokens
    documents = store.documents
    size = max(1, tokens // _PARTS)
    begins = np.zeros(tokens, dtype=np.int32)
    begins[documents.first] = 1
    for number in np.flatnonzero(documents.length > _LARGEST_SHARE * tokens).tolist():
        first, length = int(documents.first[number]), int(documents.length[number])
        begins[first : first + length : size] = 1
    return np.delete(np.cumsum(begins, dtype=np.int32), store.contexts.first)


def without_part(neighbors: Neighbors, query_parts: Tensor, parts: Array) -> Neighbors:
    """Replaces neighbors from the query's own part, int32 [rows], by padding."""
    neighbor_parts = torch.from_numpy(np.take(parts, neighbors.ids.numpy(), mode="clip"))
    return neighbors.without(neighbor_parts == query_parts.unsqueeze(-1))


def unrepeated_ngram(store: Datastore, seed: int = 0) -> int | None:
    """The smallest n for which n-grams hardly ever repeat within a page; None for none."""
    tokens, size = store.tokens, _REPEATED_WITHIN
    if len(tokens) < 2 * size:
        return 8
    starts = np.random.default_rng(seed).integers(0, len(tokens) - size, _PLACES)
    pages = [np.asarray(tokens[start : start + size]).tolist() for start in starts.tolist()]
    for n in _NGRAMS:
        count = size - n + 1
        distinct = [len({tuple(page[at : at + n]) for at in range(count)}) for page in pages]
        if 1.0 - sum(distinct) / (count * len(pages)) <= _REPEATED:
            return n
    return None
