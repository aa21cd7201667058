"""Prepares a model, with or without its memory, to score texts, and checks settings and texts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from typing_extensions import Unpack

from knn_logits.arrays import Array, Bools
from knn_logits.corpus.documents import Document
from knn_logits.engine.compatibility import check_tokenizer, pair_tokenizer
from knn_logits.engine.location import DEFAULT_KEY, KeyLocation, find_key
from knn_logits.engine.pairs import PairTokenizer, context_length
from knn_logits.engine.windows import resolve
from knn_logits.errors import ConfigError
from knn_logits.measure.text_pass import PassCache, Text, tokens_of_scoring_pass
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.presets import MemorySettings
from knn_logits.search.combined import Stores
from knn_logits.settings.config import WindowConfig
from knn_logits.store.datastore import Datastore

logger = logging.getLogger(__name__)

RUN_TOKENS = 13
# Tokens of a datastore that are read at once.
_TOKENS_AT_ONCE = 1 << 18
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# The share of a text's tokens from which on it counts as held. Similar text that is not in the
# datastore has 3% to 21% (docs/research/settings.md).
_HELD_SHARE = 0.3


class BenchSettings(MemorySettings, total=False):
    """Keyword arguments that say how texts are read and a memory is opened; see `open_bench`."""

    window: WindowConfig | None
    concatenate: bool | None
    batch_tokens: int | None
    cache: str | Path | None


@dataclass(frozen=True)
class Bench:
    """A model with its memory, ready to score texts."""

    model: nn.Module
    tokenizer: Any
    location: KeyLocation  # where the key is
    memory: Memory | None  # the datastores with their settings; None scores the model alone
    window: int  # number of tokens read at once
    stride: int  # number of tokens by which the window moves on
    concatenate: bool  # whether documents are joined into one stream
    batch_tokens: int  # number of tokens of one forward pass
    # Cuts the pairs of an encoder-decoder model; None for a causal model.
    pairs: PairTokenizer | None = None
    cache: PassCache | None = None  # where forward passes are kept for other runs

    def text(self, documents: Iterable[Document | str]) -> Text:
        windows = (self.window, self.stride, self.concatenate)
        return Text(documents, self.tokenizer, *windows, self.pairs)


def open_bench(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores | None,
    *,
    window: WindowConfig | None = None,
    concatenate: bool | None = None,
    batch_tokens: int | None = None,
    cache: str | Path | None = None,
    **settings: Unpack[MemorySettings],
) -> Bench:
    """Checks that model, tokenizer, datastores and settings fit one another.

    `cache` is a folder that keeps forward passes for other runs of the same model and text, unless
    a gate or the ∞-gram reads the model's distributions. A token takes a key and 4 bytes there.
    """
    window = WindowConfig() if window is None else window
    memory, store = None, None
    if datastore is None:
        location = find_key(model, DEFAULT_KEY)
    else:
        memory = Memory.of(model, datastore, **settings)
        for opened in memory.stores:
            check_tokenizer(tokenizer, opened)
        location, store = memory.location, memory.stores[0]
        if window.window is None:
            stored = store.manifest.windows
            window = WindowConfig(stored.window, window.stride or stored.stride)
    size, stride = resolve(window, context_length(model))
    pairs = pair_tokenizer(model, tokenizer, store)
    if pairs is not None and concatenate:
        raise ConfigError(
            "source-target pairs cannot be concatenated into one stream: remove --concatenate"
        )
    if concatenate is None:
        concatenate = pairs is None and store is not None and store.manifest.windows.concatenate
    if cache is not None and memory is not None and memory.reads_distributions:
        logger.warning("the cache is not used: a gate or the ∞-gram reads whole distributions")
        cache = None
    return Bench(
        model,
        tokenizer,
        location,
        memory,
        size,
        stride,
        concatenate,
        tokens_of_scoring_pass(model, batch_tokens),
        pairs,
        None if cache is None else PassCache(cache, model, location),
    )


def held_share(text: Text, stores: Sequence[Datastore], exclude: Collection[str] = ()) -> float:
    """The share of a text's tokens in runs of 13 that datastores hold (Brown et al. 2020, C)."""
    tokens = np.concatenate([np.zeros(0, np.int32), *text.read])
    wanted, run_of_place = np.unique(_hashed(tokens), return_inverse=True)
    hits = np.zeros(len(wanted), dtype=bool)
    for store in stores if len(wanted) else ():
        hits |= _held(store, wanted, exclude)
    starts = hits[run_of_place]
    shared = np.zeros(len(tokens), dtype=bool)
    for step in range(RUN_TOKENS):
        shared[step : step + len(starts)] |= starts
    return float(shared.sum()) / max(1, text.tokens)


def is_held(overlap: float | None) -> bool:
    """Whether datastores hold so much of a text that its results say little of other text."""
    return overlap is not None and overlap >= _HELD_SHARE


def overlap_words(share: float) -> str:
    """Says how much of a text a datastore holds."""
    part = "all" if share == 1 else f"{max(1, int(100 * share))}%"
    return f"{part} of the text's tokens are in the datastore, in runs of {RUN_TOKENS} or more"


def _held(store: Datastore, wanted: Array, exclude: Collection[str]) -> Bools:
    held = np.zeros(len(wanted), dtype=bool)
    if store.manifest.learned is not None:
        return held
    table = store.documents
    ends = table.first + table.length
    ends[list(store.left_out(exclude))] = 0
    for first in range(0, len(store.tokens), _TOKENS_AT_ONCE):
        part = np.asarray(store.tokens[first : first + _TOKENS_AT_ONCE + RUN_TOKENS - 1])
        hashes = _hashed(part)
        runs = np.searchsorted(wanted, hashes).clip(max=len(wanted) - 1)
        at = np.flatnonzero(wanted[runs] == hashes)
        # A run that crosses from one document to the next is in neither.
        limits = ends[np.searchsorted(table.first, first + at, side="right") - 1]
        held[runs[at[first + at + RUN_TOKENS <= limits]]] = True
    return held


def _hashed(tokens: Array) -> Array:
    """Hashes each run of tokens by a polynomial modulo 2^64, uint64 [tokens - 12]."""
    runs = max(0, len(tokens) - RUN_TOKENS + 1)
    numbers = np.asarray(tokens).astype(np.uint64)
    hashes: Array = np.zeros(runs, np.uint64)
    for step in range(RUN_TOKENS):
        hashes = hashes * _FACTOR + numbers[step : step + runs]
    return hashes
