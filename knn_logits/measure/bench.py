"""Prepares a model, with or without its memory, to score texts, and checks all settings."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from typing_extensions import Unpack

from knn_logits.corpus.documents import Document
from knn_logits.engine.compatibility import check_tokenizer, pair_tokenizer
from knn_logits.engine.location import DEFAULT_KEY, KeyLocation, find_key
from knn_logits.engine.pairs import PairTokenizer, context_length
from knn_logits.engine.windows import resolve
from knn_logits.errors import ConfigError
from knn_logits.measure.overlap import OverlapCheck
from knn_logits.measure.text_pass import PassCache, Text, tokens_of_scoring_pass
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.presets import MemorySettings
from knn_logits.search.combined import Stores
from knn_logits.settings.config import check_threads
from knn_logits.settings.passes import WindowConfig

logger = logging.getLogger(__name__)


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

    def text(self, documents: Iterable[Document | str], check: OverlapCheck | None = None) -> Text:
        """Reads documents as this bench scores them."""
        windows = (self.window, self.stride, self.concatenate)
        on_tokens = None if check is None else check.add
        return Text(documents, self.tokenizer, *windows, self.pairs, on_tokens)


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
    check_threads(settings.get("threads"))
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
