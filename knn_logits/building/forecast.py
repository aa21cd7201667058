"""Estimates a datastore from a number of tokens alone, before there is any text.

The text is taken for one long document, so that nearly every token becomes an entry. Without a
model, the time for the keys comes from the number of its layers and from a matrix product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from knn_logits.building.costs import head_factor, key_seconds
from knn_logits.building.estimate import Estimate, told
from knn_logits.building.needs import Speed
from knn_logits.building.planning import planned
from knn_logits.building.sizes import Extent, process_bytes, weights_bytes
from knn_logits.building.timing import fastest
from knn_logits.engine.compatibility import (
    canary_keys,
    canary_tokens,
    check_causal,
    vocabulary_size,
)
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import DEFAULT_KEY
from knn_logits.engine.windows import plan, resolve
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import IndexConfig, WindowConfig, whole_number

# The forward pass is timed on so many windows.
_WINDOWS = 64
# A layer of a transformer has so many weights for each square of its width: four in its attention,
# and eight in a feed-forward network of four times the width.
_WEIGHTS = 12
# A model that only its size is known of is taken to keep its weights in half precision.
_WEIGHT_BYTES = 2
_ROWS = 1024
# The width of the matrix product that is timed.
_WIDEST = 4096
# So many tokens the head makes a forward pass longer, where the vocabulary is not known.
_HEAD = 2.0


def forecast(
    tokens: int,
    *,
    model: nn.Module | None = None,
    tokenizer: Any = None,
    dim: int | None = None,
    layers: int | None = None,
    key: str = DEFAULT_KEY,
    window: WindowConfig | None = None,
    index: IndexConfig | None = None,
    k: int | None = None,
    calibrate: bool = True,
    keys_dtype: str = "float16",
    batch_tokens: int | None = None,
    threads: int | None = None,
    compare: bool = True,
    progress: Progress = no_progress,
) -> Estimate:
    """Estimates the datastore of so many tokens.

    Args:
        tokens: Number of tokens of the text.
        model: The model whose keys it holds; None where only `dim` is known.
        tokenizer: Its tokenizer.
        dim: Length of a key, where there is no model.
        layers: Number of layers, where there is no model. Without it no time is estimated.
        key: Where the key is in the model.
        window: The number of tokens that the model sees at once, and the stride.
        index: The kind of index.
        k: Neighbors of each query; None takes 64.
        calibrate: Whether the build chooses settings.
        keys_dtype: "float16" or "float32".
        batch_tokens: Tokens of one forward pass.
        threads: OpenMP threads of the index.
        compare: Whether other kinds of index are estimated as well.
        progress: A callback that is told that speed is measured.

    Returns:
        The estimate. Its `seconds` are None where nothing tells how long keys take.

    Raises:
        ConfigError: when a setting is out of its range.
        ModelError: when the model has no place for the key.
    """
    tokens = whole_number("tokens", tokens, 2)
    progress("measuring", 0, None)
    config = index or IndexConfig()
    fixed = 0
    if model is not None:
        dim, fixed, speed = _measured(
            model, tokenizer, tokens, key, window, keys_dtype, batch_tokens
        )
    else:
        dim = whole_number("dim", dim, 1)
        speed = _supposed(tokens, dim, layers, window)
    extent = Extent(
        entries=tokens - 1,
        tokens=tokens,
        documents=1,
        dim=dim,
        dtype=keys_dtype,
        metric=config.metric or "l2",
        table_bytes=0,
        fixed=fixed,
    )
    return told(extent, speed, config, k=k, calibrate=calibrate, threads=threads, compare=compare)


def _read(tokens: int, window: int, stride: int) -> int:
    """Tokens that the model reads, since each stands in more than one window."""
    return int(tokens * max(1.0, window / stride))


def _measured(
    model: nn.Module,
    tokenizer: Any,
    tokens: int,
    key: str,
    window: WindowConfig | None,
    keys_dtype: str,
    batch_tokens: int | None,
) -> tuple[int, int, Speed]:
    build = planned(
        model,
        tokenizer,
        key=key,
        window=window,
        concatenate=False,
        source_prefix="",
        source_lang=None,
        target_lang=None,
        index=None,
        k=None,
        lmbda=None,
        temperature=None,
        keys_dtype=keys_dtype,
        batch_tokens=batch_tokens,
        threads=None,
    )
    keys = build.keys
    size, stride = keys.windows.window, keys.windows.stride
    vocabulary = vocabulary_size(model)
    fixed = canary_tokens(tokenizer, vocabulary)[:size]
    with evaluating(model):
        check_causal(model, keys.location, fixed)
        dim = canary_keys(model, keys.location, fixed).shape[1]
    sample = np.random.default_rng(0).integers(0, vocabulary, size * _WINDOWS, dtype=np.int32)
    windows = list(plan([0], [len(sample)], size, stride))
    program = process_bytes()
    spent, slowed = key_seconds(
        model,
        keys.location,
        sample,
        windows,
        dim=dim,
        dtype=keys.dtype,
        batch_tokens=keys.batch_tokens,
    )
    each = spent / sum(one.size for one in windows)
    speed = Speed(
        keys=each * _read(tokens, size, stride),
        slowed=slowed,
        token=each / slowed,
        head=head_factor(model, dim),
        weights=weights_bytes(model),
        program=program,
        batch=max(0, process_bytes() - program),
    )
    return dim, len(fixed), speed


def _supposed(tokens: int, dim: int, layers: int | None, window: WindowConfig | None) -> Speed:
    size, stride = resolve(window or WindowConfig(), None)
    program = process_bytes()
    if layers is None:
        return Speed(None, 1.0, 0.0, _HEAD, 0, program)
    weights = _WEIGHTS * whole_number("layers", layers, 1) * dim * dim
    width = min(dim, _WIDEST)
    one, other = torch.rand(_ROWS, width), torch.rand(width, width)
    # A product of matrices takes one multiplication for each weight and each token.
    product = fastest(lambda: one @ other) / (_ROWS * width * width)
    held = weights * _WEIGHT_BYTES
    return Speed(
        keys=product * weights * _read(tokens, size, stride),
        slowed=1.0,
        token=product * weights,
        head=_HEAD,
        weights=held,
        program=program + held,
    )
