"""Models, texts and datastores made ready to be scored together; all that can be refused is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from typing_extensions import Unpack

from knn_logits.capture.forward import input_device
from knn_logits.capture.location import DEFAULT_KEY, KeyLocation, find_key
from knn_logits.combined import Stores, open_retriever, open_stores
from knn_logits.compatibility import (
    check_model,
    check_tokenizer,
    locate_key,
    pair_tokenizer,
    vocabulary_size,
)
from knn_logits.config import SearchSettings, WindowConfig, check_threads, whole_number
from knn_logits.datastore.store import Datastore
from knn_logits.errors import ConfigError
from knn_logits.gating.gate import Gate
from knn_logits.retrieval import Retriever
from knn_logits.scoring.text_pass import scoring_batch_tokens
from knn_logits.settings import scoring_settings
from knn_logits.text.pairs import PairTokenizer, context_length
from knn_logits.windows import resolve


@dataclass(frozen=True)
class Bench:
    """A model with its memory, ready to score texts.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        location: Where the key is.
        retriever: Searches the datastore; None scores the model alone.
        gate: Decides how much its neighbors count; None where that is a number.
        pairs: Cuts the pairs of an encoder-decoder model; None for a causal one.
        window: Tokens read at once.
        stride: Tokens by which the window moves on.
        concatenate: Whether documents are joined into one stream.
        batch_tokens: Tokens a forward pass.
    """

    model: nn.Module
    tokenizer: Any
    location: KeyLocation
    retriever: Retriever | None
    window: int
    stride: int
    concatenate: bool
    batch_tokens: int
    gate: Gate | None = None
    pairs: PairTokenizer | None = None


def open_bench(
    model: nn.Module,
    tokenizer: Any,
    datastore: Stores | None,
    *,
    weights: Sequence[float] | None = None,
    k: int | None = None,
    lmbda: float | Gate | None = None,
    temperature: float | None = None,
    window: WindowConfig | None = None,
    concatenate: bool | None = None,
    batch_tokens: int | None = None,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    check: bool = True,
    native_index: bool = False,
    **search: Unpack[SearchSettings],
) -> Bench:
    """Checks model, tokenizer, datastores and settings against one another.

    See `knn_logits.evaluate` for the arguments.

    Raises:
        ConfigError: when a setting is out of its range.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    if batch_tokens is not None:
        batch_tokens = whole_number("batch_tokens", batch_tokens, 1)
    check_threads(threads)
    stores = [] if datastore is None else open_stores(datastore)
    retriever = gate = None
    windows = (window or WindowConfig(), False)
    if not stores:
        location = find_key(model, DEFAULT_KEY)
    else:
        for store in stores:
            check_tokenizer(tokenizer, store)
            location = locate_key(model, store)
            if check:
                check_model(model, store, location)
        config, gate = scoring_settings(
            stores[0], k=k, lmbda=lmbda, temperature=temperature, **search
        )
        windows = _like_the_store(window, stores[0])
        resolve(windows[0], context_length(model))
        retriever = open_retriever(
            stores, config, weights=weights, device=device, threads=threads, native=native_index
        )
    size, stride = resolve(windows[0], context_length(model))
    pairs = pair_tokenizer(model, tokenizer, stores[0] if stores else None)
    if pairs is not None:
        if concatenate:
            raise ConfigError("pairs are no stream of text: leave out --concatenate")
        concatenate = False
    return Bench(
        model,
        tokenizer,
        location,
        retriever,
        size,
        stride,
        windows[1] if concatenate is None else concatenate,
        batch_tokens or scoring_batch_tokens(input_device(model), vocabulary_size(model)),
        gate,
        pairs,
    )


def _like_the_store(window: WindowConfig | None, store: Datastore) -> tuple[WindowConfig, bool]:
    """The windows asked for, those the datastore was built with where none are."""
    record = store.manifest.windows
    window = window or WindowConfig()
    if window.window is None:
        return WindowConfig(record.window, window.stride or record.stride), record.concatenate
    return window, record.concatenate
