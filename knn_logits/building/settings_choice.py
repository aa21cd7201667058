"""Chooses λ, temperature and k on a sample of a datastore's own text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.building.planning import complete
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.pairs import PairTokenizer
from knn_logits.engine.windows import Piece, TextWindow, windows_of
from knn_logits.index.base import Index
from knn_logits.measure.likelihood import LMBDAS, Grid, GridLikelihood, spread, temperatures_around
from knn_logits.measure.overlap import hashed
from knn_logits.measure.text_pass import TokenScores, score_pieces, tokens_of_scoring_pass
from knn_logits.mixture.vote import Weighing
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.search.retriever import Retriever
from knn_logits.search.shared_tokens import SharedTokens
from knn_logits.settings.config import DEFAULT_K, FEWEST_CALIBRATED, KNNConfig, StoredSettings
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
# Number of tokens of a span. Hardly any text repeats as many by chance.
_SPAN = 32
_SPANS, _TOKENS_AT_ONCE = 512, 1 << 20
# A larger share of copies is warned of.
_COPIES = 0.5

Ints = npt.NDArray[np.int64]


class Choice:
    """Chooses k, λ, temperature and the weight of suffixes by the likelihood of tokens."""

    def __init__(self, store: Datastore, fixed: StoredSettings) -> None:
        # These hold if nothing is chosen.
        config = KNNConfig.of(store.manifest.settings, **fixed)
        self.default = SettingsRecord(**config.stored_values())
        self.largest = fixed.get("k") or DEFAULT_K
        self._fixed, self._store = fixed, store
        self._shared = SharedTokens(store.tokens, store.documents.first, store.contexts.first)
        self._likelihoods: dict[float, GridLikelihood] = {}

    def add(self, neighbors: Neighbors, scores: TokenScores) -> None:
        """Adds tokens with their neighbors. The first ones decide which temperatures are tried."""
        if not self._likelihoods:
            around = self._store.manifest.settings.temperature
            k, lmbda = self._fixed.get("k"), self._fixed.get("lmbda")
            warm, weight = self._fixed.get("temperature"), self._fixed.get("suffix_weight")
            grid = Grid(
                (k,) if k else powers_up_to(self.largest, _SMALLEST_K),
                (warm,) if warm else temperatures_around(spread(neighbors), around),
                LMBDAS[2:] if lmbda is None else (lmbda,),
            )
            weights = (weight,) if weight else _SUFFIX_WEIGHTS
            self._likelihoods = {
                weight: GridLikelihood(grid, Weighing(1.0, suffix_weight=weight))
                for weight in weights
            }
        shared = self._shared.count(neighbors.ids, scores.prefixes)
        neighbors = replace(neighbors, shared=shared)
        for likelihood in self._likelihoods.values():
            likelihood.add(neighbors, scores.targets, scores.log_p_lm)

    def best(self) -> SettingsRecord:
        """Returns the best settings, marked as calibrated, after at least one call of `add`."""
        best_of = {weight: grid.best(_K_TOLERANCE) for weight, grid in self._likelihoods.items()}
        weight, best = min(best_of.items(), key=lambda choice: choice[1].perplexity)
        return SettingsRecord(
            # A k above the number of entries costs nothing, and the datastore may grow.
            k=best.k if best.k < len(self._store) else self.default.k,
            lmbda=best.lmbda,
            temperature=self._fixed.get("temperature") or float(f"{best.temperature:.4g}"),
            suffix_weight=weight,
            calibrated=True,
        )


def choose_settings(
    model: nn.Module,
    location: KeyLocation,
    store: Datastore,
    index: Index,
    *,
    fixed: StoredSettings = StoredSettings(),  # noqa: B008
    pairs: PairTokenizer | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> SettingsRecord:
    """Chooses the settings that are not fixed so that a datastore predicts its text best."""
    choice = Choice(store, fixed)
    if complete(fixed):
        return choice.default
    pieces = sample_pieces(store, seed, pairs)
    if predicted_tokens(pieces) < FEWEST_CALIBRATED:
        return choice.default
    k = min(len(store), OVERSAMPLING * choice.largest)
    retriever = Retriever(store, KNNConfig(k=k), index=index)
    parts = part_of_entries(store)
    for scores in score_blocks(model, location, pieces, _QUERIES_AT_ONCE, progress):
        query_parts = torch.from_numpy(parts[entry_of_places(store, scores.places)])
        neighbors = retriever.search(scores.states).to("cpu")
        choice.add(without_part(neighbors, query_parts, parts), scores)
    settings = choice.best()
    logger.debug("calibrated on %d tokens: %s", predicted_tokens(pieces), settings)
    return settings


def predicted_tokens(pieces: Sequence[Piece]) -> int:
    return sum(piece.size - piece.skip for piece in pieces)


def score_blocks(
    model: nn.Module, location: KeyLocation, pieces: list[Piece], rows: int, progress: Progress
) -> Iterator[TokenScores]:
    """Scores the tokens of windows of text, and yields them in batches."""
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
    drawn = sorted(draw_windows(store, sample_size(len(store)), seed), key=lambda w: w.start)
    return pieces_of(store, drawn, pairs)


def draw_windows(
    store: Datastore, size: int, seed: int, fits: Callable[[TextWindow], bool] = lambda _: True
) -> Iterator[TextWindow]:
    """Draws windows that fit, until they have the wanted number of entries."""
    windows, entries = windows_of(store.contexts, store.manifest.windows), 0
    for number in np.random.default_rng(seed).permutation(len(windows)).tolist():
        if entries >= size:
            break
        if fits(windows[number]):
            entries += windows[number].entries
            yield windows[number]


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


def part_of_entries(store: Datastore) -> npt.NDArray[np.int32]:
    """The part of the text of each entry, int32: a document, or a twentieth of a huge one."""
    tokens = store.manifest.tokens
    documents = store.documents
    size = max(1, tokens // _PARTS)
    begins = np.zeros(tokens, dtype=np.int32)
    begins[documents.first] = 1
    for number in np.flatnonzero(documents.length > _LARGEST_SHARE * tokens).tolist():
        first, length = int(documents.first[number]), int(documents.length[number])
        begins[first : first + length : size] = 1
    inside = np.ones(tokens, dtype=bool)
    inside[store.contexts.first] = False
    return np.cumsum(begins, dtype=np.int32)[inside]


def entry_of_places(store: Datastore, places: Ints) -> Ints:
    """Returns the entry of each token, given the token's position in `tokens.npy`."""
    first = store.contexts.first
    return places - np.searchsorted(first, places, side="right")


def without_part(
    neighbors: Neighbors, query_parts: Tensor, parts: npt.NDArray[np.int32]
) -> Neighbors:
    """Replaces neighbors from the query's own part, int32 [rows], by padding."""
    neighbor_parts = torch.from_numpy(np.take(parts, neighbors.ids.numpy(), mode="clip"))
    return neighbors.without((neighbor_parts == query_parts.unsqueeze(-1)) | ~neighbors.mask)


def repeated_share(tokens: Array, seed: int = 0) -> float:
    """Measures the share of spans of 32 tokens that stand elsewhere in a text as well."""
    if len(tokens) < 2 * _SPAN:
        return 0.0
    starts = np.random.default_rng(seed).integers(0, len(tokens) - _SPAN + 1, _SPANS)
    drawn = np.array([hashed(tokens[start : start + _SPAN], _SPAN)[0] for start in starts.tolist()])
    distinct = np.unique(drawn)
    earliest, latest = np.full(len(distinct), len(tokens)), np.full(len(distinct), -1)
    for first in range(0, len(tokens) - _SPAN + 1, _TOKENS_AT_ONCE):
        hashes = hashed(tokens[first : first + _TOKENS_AT_ONCE + _SPAN - 1], _SPAN)
        places = np.searchsorted(distinct, hashes).clip(max=len(distinct) - 1)
        (hits,) = np.nonzero(distinct[places] == hashes)
        np.minimum.at(earliest, places[hits], first + hits)
        np.maximum.at(latest, places[hits], first + hits)
    return float(np.mean((latest - earliest >= _SPAN)[np.searchsorted(distinct, drawn)]))


def warn_of_repeats(store: Datastore, seed: int = 0) -> None:
    """Warns of text that is mostly copies: the likeliest settings follow it blindly."""
    share = repeated_share(store.tokens, seed)
    if share > _COPIES:
        logger.warning(
            "%.0f%% of the corpus is verbatim duplicates. Settings calibrated on it favor "
            "copying and may not suit other text: deduplicate the corpus, or tune on other text "
            "with `knn-logits tune MODEL STORE TEXT --write`",
            100.0 * share,
        )
