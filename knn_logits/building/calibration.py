"""Choosing λ, temperature and k on a sample of a datastore's own text.

The queries are entries of the datastore. An entry's own document would answer with the very words
that follow, and new text has no such document. So neighbors from the same document are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from knn_logits.arrays import Array
from knn_logits.engine.compatibility import vocabulary_size
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.pairs import PairTokenizer
from knn_logits.engine.windows import Piece, TextWindow, plan
from knn_logits.index.base import Index
from knn_logits.measure.likelihood import LMBDAS, Grid, GridLikelihood, spread, temperatures_around
from knn_logits.measure.text_pass import score_pieces, scoring_batch_tokens
from knn_logits.mixture.weights import Weighing
from knn_logits.progress import Progress, no_progress
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.retriever import Retriever
from knn_logits.search.shared_tokens import SharedTokens
from knn_logits.settings.config import DEFAULT_K, FEWEST_CALIBRATED, KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import SettingsRecord

logger = logging.getLogger(__name__)

# The least and the most tokens that settings are chosen on. A small datastore has fewer.
_SMALL, _MOST = 1024, 8192
# At most one token in so many is used, so that this costs less than a tenth of the build.
_SHARE = 25
# So many neighbors are asked for each that is wanted, since many are in the query's own document.
OVER_ASK = 4
# A document with a larger share of all tokens than this is treated as several parts.
_LARGEST_SHARE, _PARTS = 0.5, 20
_SMALLEST_K = 64
# A smaller k searches faster. It is taken where it costs no more perplexity than this share.
_K_TOLERANCE = 0.002
_QUERIES_AT_ONCE = 128
# With 1 the text before an entry does not matter. From 2 to 8 perplexity differs little (LOG.md).
_SUFFIX_WEIGHTS = (1.0, 4.0)

Ints = npt.NDArray[np.int64]


class Choice:
    """Chooses k, λ, temperature and the weight of suffixes by the likelihood of tokens.

    Args:
        store: The datastore.
        k: A value to keep. None chooses one; the same holds for `lmbda` and `temperature`.
        lmbda: Weight of the neighbors.
        temperature: Temperature of the softmax over the neighbors.
        suffix_weight: Likewise; None where the three others are given stands for 1.

    Attributes:
        kept: The manifest's settings with the given values, which hold if nothing is chosen.
        given: Whether k, λ and temperature are given, so that there is nothing to choose.
        largest: The most neighbors of a query that a choice may have.
    """

    def __init__(
        self,
        store: Datastore,
        *,
        k: int | None,
        lmbda: float | None,
        temperature: float | None,
        suffix_weight: float | None = None,
    ) -> None:
        own = store.manifest.settings
        self.kept = SettingsRecord(
            k=k or own.k,
            lmbda=own.lmbda if lmbda is None else lmbda,
            temperature=temperature or own.temperature,
            suffix_weight=suffix_weight or own.suffix_weight,
        )
        self.given = None not in (k, lmbda, temperature)
        self.largest = k or DEFAULT_K
        self._k, self._lmbda, self._temperature = k, lmbda, temperature
        self._around = own.temperature
        self._weights = (suffix_weight,) if suffix_weight else _SUFFIX_WEIGHTS
        self._store = store
        self._shared = SharedTokens(store.tokens, store.documents.first, store.contexts.first)
        self._found: dict[float, GridLikelihood] = {}

    def add(
        self,
        neighbors: Neighbors,
        targets: torch.Tensor,
        log_p_lm: torch.Tensor,
        texts: Prefixes,
    ) -> None:
        """Adds tokens with their neighbors. The first ones decide which temperatures are tried.

        Args:
            neighbors: The neighbors of `rows` queries, on the CPU.
            targets: int64 [rows], the tokens.
            log_p_lm: float32 [rows], their log-probabilities under the model.
            texts: The text before each of them.
        """
        if not self._found:
            k, temperature = self._k, self._temperature
            scale = spread(neighbors)
            grid = Grid(
                (k,) if k else powers_up_to(self.largest, _SMALLEST_K),
                (temperature,) if temperature else temperatures_around(scale, self._around),
                LMBDAS[2:] if self._lmbda is None else (self._lmbda,),
            )
            self._found = {
                weight: GridLikelihood(grid, Weighing(1.0, suffix_weight=weight))
                for weight in self._weights
            }
        shared = torch.from_numpy(self._shared.count(neighbors.ids.numpy(), texts))
        neighbors = replace(neighbors, shared=shared)
        for likelihood in self._found.values():
            likelihood.add(neighbors, targets, log_p_lm)

    def best(self) -> SettingsRecord:
        """Returns the best settings, marked as calibrated, after at least one call of `add`."""
        choices = {weight: found.best(_K_TOLERANCE) for weight, found in self._found.items()}
        weight, best = min(choices.items(), key=lambda one: one[1].perplexity)
        chosen = float(f"{best.temperature:.4g}")
        return SettingsRecord(
            # A k above the number of entries costs nothing, and the datastore may grow.
            k=best.k if best.k < len(self._store) else self.kept.k,
            lmbda=best.lmbda,
            temperature=chosen if self._temperature is None else self._temperature,
            suffix_weight=weight,
            calibrated=True,
        )


def calibrate(
    model: nn.Module,
    location: KeyLocation,
    store: Datastore,
    index: Index,
    *,
    k: int | None = None,
    lmbda: float | None = None,
    temperature: float | None = None,
    suffix_weight: float | None = None,
    pairs: PairTokenizer | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> SettingsRecord:
    """Chooses the settings under which a datastore predicts its own documents best.

    Args:
        model: The model that built the datastore.
        location: Where the key is.
        store: The datastore, with its keys. Its manifest need not be written yet.
        index: The index over its keys.
        k: A value to keep. None chooses one; the same holds for `lmbda` and `temperature`.
        lmbda: Weight of the neighbors.
        temperature: Temperature of the softmax over the neighbors.
        suffix_weight: A value to keep; None chooses one, but takes 1 where the others are given.
        pairs: Cuts the sources into tokens, for an encoder-decoder model.
        seed: Seed of the sample.
        progress: A callback that is told how many tokens are scored.

    Returns:
        The settings, marked as calibrated. Where the other three are given, or the datastore is too
        small to choose on, the manifest's settings with the given values, not marked.
    """
    choice = Choice(store, k=k, lmbda=lmbda, temperature=temperature, suffix_weight=suffix_weight)
    if choice.given:
        return choice.kept
    pieces = sample_pieces(store, seed, pairs)
    tokens = sum(piece.size - piece.skip for piece in pieces)
    if tokens < FEWEST_CALIBRATED:
        return choice.kept
    asked = min(len(store), OVER_ASK * choice.largest)
    retriever = Retriever(store, KNNConfig(k=asked), index=index)
    parts = part_of_entries(store)
    done = 0
    batch = scoring_batch_tokens(input_device(model), vocabulary_size(model))
    progress("calibration", 0, tokens)
    with evaluating(model):
        for scored in score_pieces(model, location, pieces, batch):
            own_parts = torch.from_numpy(parts[entry_of_places(store, scored.places)])
            for first in range(0, len(scored.targets), _QUERIES_AT_ONCE):
                rows = slice(first, first + _QUERIES_AT_ONCE)
                neighbors = without_own_part(
                    retriever.search(scored.states[rows]).to("cpu"),
                    own_parts[rows],
                    parts,
                )
                choice.add(
                    neighbors, scored.targets[rows], scored.log_p_lm[rows], scored.prefixes[rows]
                )
                done += neighbors.rows
                progress("calibration", done, tokens)
    settings = choice.best()
    logger.debug("calibrated on %d tokens: %s", tokens, settings)
    return settings


def wanted_tokens(entries: int) -> int:
    """The size in tokens of the sample that a datastore of so many entries is calibrated on."""
    return min(entries, _MOST, max(_SMALL, entries // _SHARE))


def sample_pieces(store: Datastore, seed: int, pairs: PairTokenizer | None = None) -> list[Piece]:
    """Draws whole windows of a datastore's text at random, with their sources if it has pairs."""
    record, contexts = store.manifest.windows, store.contexts
    windows = list(plan(contexts.first, contexts.length, record.window, record.stride))
    wanted = wanted_tokens(len(store))
    chosen, entries = [], 0
    for number in np.random.default_rng(seed).permutation(len(windows)):
        if entries >= wanted:
            break
        chosen.append(windows[number])
        entries += windows[number].entries
    chosen.sort(key=lambda one: one.start)
    return pieces_of(store, chosen, pairs)


def pieces_of(
    store: Datastore, chosen: Sequence[TextWindow], pairs: PairTokenizer | None = None
) -> list[Piece]:
    """Returns windows of a datastore's text with their tokens, and with their sources."""
    sources: list[Array] | list[None] = [None] * len(chosen)
    if pairs is not None:
        sources = pairs.sources(store.documents.sources([window.context for window in chosen]))
    return [
        Piece(
            np.asarray(store.tokens[window.start : window.start + window.size + 1]),
            window.skip,
            window.start,
            source,
        )
        for window, source in zip(chosen, sources, strict=True)
    ]


def part_of_entries(store: Datastore) -> npt.NDArray[np.int32]:
    """int32 [entries], the part of the text in which each entry stands.

    A part is a document. A document with more than half of all tokens is cut into parts of a
    twentieth of all tokens, since without it too little would be left to search.
    """
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


def without_own_part(
    neighbors: Neighbors, own: torch.Tensor, parts: npt.NDArray[np.int32]
) -> Neighbors:
    """Replaces neighbors from the query's own part of the text by padding.

    Args:
        neighbors: The neighbors of `rows` queries.
        own: int32 [rows], the part that each query is in.
        parts: int32 [entries], the part that each entry is in.
    """
    theirs = torch.from_numpy(np.take(parts, neighbors.ids.numpy(), mode="clip"))
    return neighbors.without((theirs == own.unsqueeze(-1)) | ~neighbors.mask)
