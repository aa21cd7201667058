"""From tokens to keys: batches of windows through the model, in the entries' order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.capture.forward import input_device, key_states, windows_batch
from knn_logits.capture.location import KeyLocation
from knn_logits.errors import ModelError
from knn_logits.neighbors import Array
from knn_logits.windows import TextWindow, batches

# On a CPU the activations of a larger batch no longer fit the cache.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 32_768}
_BUFFER_BYTES = 64 << 20


def default_batch_tokens(device: torch.device) -> int:
    """Tokens a batch that a device works through quickly."""
    return _BATCH_TOKENS.get(device.type, 8192)


def compute_keys(
    model: nn.Module,
    location: KeyLocation,
    tokens: Array,
    windows: Sequence[TextWindow],
    *,
    dtype: str,
    batch_tokens: int,
) -> Iterator[Array]:
    """Computes the keys of all entries.

    Windows of like length share a batch; what comes out is in the entries' order again.

    Args:
        model: In evaluation mode.
        location: Where the key is.
        tokens: int32, the corpus.
        windows: From `windows.plan`.
        dtype: "float16" or "float32", the keys' precision.
        batch_tokens: Tokens a forward pass, padding included.

    Yields:
        [rows, dim] in `dtype`: the keys of the next entries.

    Raises:
        ModelError: when a key is not finite, or too large for float16.
    """
    device = input_device(model)
    kind = getattr(torch, dtype)
    group_entries, start = _BUFFER_BYTES // 4096, 0
    while start < len(windows):
        group: list[TextWindow] = []
        entries = 0
        while start < len(windows) and (not group or entries < group_entries):
            group.append(windows[start])
            entries += windows[start].entries
            start += 1
        keys: Array | None = None
        for batch in batches(group, batch_tokens):
            states = key_states(model, location, windows_batch(tokens, batch, device))
            if keys is None:
                dim = states.shape[-1]
                keys = np.empty((entries, dim), dtype)
                group_entries = max(batch_tokens, _BUFFER_BYTES // (dim * keys.itemsize))
            _check_finite(states, location, dtype)
            numbers = states.to(kind).cpu().numpy()
            for row, window in enumerate(batch):
                first = window.first_entry - group[0].first_entry
                keys[first : first + window.entries] = numbers[row, window.skip : window.size]
        assert keys is not None
        yield keys


def _check_finite(states: Tensor, location: KeyLocation, dtype: str) -> None:
    largest: Any = states.abs().amax()
    limit = torch.finfo(getattr(torch, dtype)).max
    if bool(largest <= limit):
        return
    if bool(largest.isfinite()):
        raise ModelError(
            f"a key of {location} holds {float(largest):.3g}, too large for {dtype}; "
            "build with --keys-dtype float32"
        )
    raise ModelError(
        f"a key of {location} is not finite: load the model in another precision "
        "(--dtype float32 or bfloat16), or name another key with --key"
    )
