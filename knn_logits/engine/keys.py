"""Computes keys from tokens: batches of windows go through the model, in the entries' order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.engine.forward import evaluating, input_device, key_states, windows_batch
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import TextWindow, batches
from knn_logits.errors import ModelError
from knn_logits.settings.config import whole_number

# The activations of a larger batch no longer fit the cache of a CPU.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 32_768}
_BUFFER_BYTES = 64 << 20
# An interruption loses all batches that are in work. Sorting fewer windows by size pads more: lines
# of 20 tokens take 7% more tokens with all at once, 12% with 16 batches, and 32% with 4.
_BATCHES_AT_ONCE = 16

# Returns the sources of some contexts, given their numbers: int32 [source tokens] each.
Sources = Callable[[Sequence[int]], list[Array]]


def tokens_of_pass(model: nn.Module, batch_tokens: int | None = None) -> int:
    """The tokens of one forward pass; None chooses as many as the device works through quickly."""
    if batch_tokens is not None:
        return whole_number("batch_tokens", batch_tokens, 1)
    return _BATCH_TOKENS.get(input_device(model).type, 8192)


@dataclass(frozen=True, eq=False)
class KeySource:
    """A model that computes keys where a datastore stores none."""

    model: nn.Module
    location: KeyLocation

    def keys(
        self, tokens: Array, windows: Sequence[TextWindow], *, dim: int, dtype: str
    ) -> list[Array]:
        ends = np.cumsum([window.entries for window in windows]).tolist()
        first = [0, *ends[:-1]]
        numbered = [
            replace(window, first_entry=entry) for window, entry in zip(windows, first, strict=True)
        ]
        with evaluating(self.model):
            parts = compute_keys(
                self.model,
                self.location,
                tokens,
                numbered,
                dim=dim,
                dtype=dtype,
                batch_tokens=tokens_of_pass(self.model),
            )
            keys = np.concatenate(list(parts))
        # A copy lets a window be dropped while others are kept.
        return [keys[a:b].copy() for a, b in zip(first, ends, strict=True)]


def compute_keys(
    model: nn.Module,
    location: KeyLocation,
    tokens: Array,
    windows: Sequence[TextWindow],
    *,
    dim: int,
    dtype: str,
    batch_tokens: int,
    first_entry: int = 0,
    sources: Sources | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Array]:
    """Computes the keys of all entries from `first_entry` on."""
    device = input_device(model)
    kind = getattr(torch, dtype)
    groups = grouped(windows, dim=dim, dtype=dtype, batch_tokens=batch_tokens)
    for group in groups_from(groups, first_entry, sources):
        start, end = group[0].first_entry, group[-1].first_entry + group[-1].entries
        keys = np.empty((end - start, dim), dtype)
        for batch in batches(group, batch_tokens):
            states = key_states(model, location, windows_batch(tokens, batch, device))
            _check_finite(states, location, dtype)
            numbers = states.to(kind).cpu().numpy()
            for row, window in enumerate(batch):
                first = window.first_entry - start
                keys[first : first + window.entries] = numbers[row, window.skip : window.size]
            advance(sum(window.entries for window in batch))
        yield keys[max(0, first_entry - start) :]


def grouped(
    windows: Sequence[TextWindow], *, dim: int, dtype: str, batch_tokens: int
) -> Iterator[list[TextWindow]]:
    """Yields groups of a few batches of windows, whose keys fit into the buffer."""
    fit = _BUFFER_BYTES // (dim * np.dtype(dtype).itemsize)
    entries = max(batch_tokens, min(fit, _BATCHES_AT_ONCE * batch_tokens))
    group: list[TextWindow] = []
    held = 0
    for window in windows:
        group.append(window)
        held += window.entries
        if held >= entries:
            yield group
            group, held = [], 0
    if group:
        yield group


def groups_from(
    groups: Iterable[list[TextWindow]], first_entry: int, sources: Sources | None
) -> Iterator[list[TextWindow]]:
    """Yields the groups with entries from `first_entry` on, with what an encoder reads for them."""
    for group in groups:
        if group[-1].first_entry + group[-1].entries <= first_entry:
            continue
        if sources is not None:
            read = sources([window.context for window in group])
            group = [replace(window, source=ids) for window, ids in zip(group, read, strict=True)]
        yield group


def _check_finite(states: Tensor, location: KeyLocation, dtype: str) -> None:
    largest: Any = states.abs().amax()
    if not bool(largest <= torch.finfo(getattr(torch, dtype)).max):
        raise ModelError(
            f"a key of {location} is {float(largest):.3g}, which is no number of {dtype}: build "
            "with --keys-dtype float32, load the model in another precision (--dtype float32 or "
            "bfloat16), or choose another key with --key"
        )
