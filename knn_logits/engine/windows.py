"""Cuts text into windows so that every token is predicted once, and computes their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.engine.forward import evaluating, input_device, key_states, padded
from knn_logits.engine.location import KeyLocation
from knn_logits.errors import ConfigError, ModelError
from knn_logits.settings.config import WindowConfig, whole_number
from knn_logits.store.documents import Contexts
from knn_logits.store.records import WindowRecord

_LARGEST_DEFAULT = 1024
# The activations of a larger batch no longer fit the cache of a CPU.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 32_768}
_BUFFER_BYTES = 64 << 20
# An interruption loses all batches that are in work. Sorting fewer windows by size pads more: lines
# of 20 tokens take 7% more tokens with all at once, 12% with 16 batches, and 32% with 4.
_BATCHES_AT_ONCE = 16

# Returns the sources of some contexts, given their numbers: int32 [source tokens] each.
Sources = Callable[[Sequence[int]], list[Array]]
# `window_keys` of a model and a location.
KeySource = Callable[..., list[Array]]


@dataclass(frozen=True)
class Piece:
    """A window together with its tokens, for texts that are never held as a whole."""

    tokens: Array  # int32 [size + 1], the tokens that the model reads and the one after them
    skip: int  # as in `TextWindow`
    first: int  # the position of the first token in the text
    source: Array | None = None  # int32 [source tokens], the source that an encoder reads

    @property
    def size(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True)
class TextWindow:
    """One forward pass over part of a text."""

    start: int  # the first token that the model reads
    size: int  # state j predicts the token start + j + 1, for j < size
    skip: int  # number of states at the beginning that an earlier window has given
    first_entry: int  # the entry of the first state after these
    context: int = field(default=0, compare=False)
    source: Array | None = field(default=None, compare=False, repr=False)

    @property
    def entries(self) -> int:
        """Number of states that become entries."""
        return self.size - self.skip

    @property
    def source_size(self) -> int:
        return 0 if self.source is None else len(self.source)


def resolve(config: WindowConfig, context_length: int | None) -> tuple[int, int]:
    """Window and stride for a model."""
    window = config.window or min(context_length or _LARGEST_DEFAULT, _LARGEST_DEFAULT)
    if context_length is not None and window > context_length:
        raise ConfigError(
            f"window {window} is longer than the model's context of {context_length} tokens: use "
            f"--window {context_length} or less"
        )
    stride = config.stride or max(1, window // 2)
    if stride > window:
        raise ConfigError(f"stride {stride} is larger than window {window}: use a smaller stride")
    return window, stride


def plan(
    first: Iterable[int], length: Iterable[int], window: int, stride: int
) -> Iterator[TextWindow]:
    entry = 0
    for number, (begin, tokens) in enumerate(zip(first, length, strict=True)):
        readable = int(tokens) - 1
        offset = 0
        while readable > 0:
            size = min(window, readable - offset)
            skip = 0 if offset == 0 else window - stride
            yield TextWindow(int(begin) + offset, size, skip, entry, number)
            entry += size - skip
            if offset + window >= readable:
                break
            offset += stride


def windows_of(contexts: Contexts, record: WindowRecord) -> list[TextWindow]:
    return list(plan(contexts.first, contexts.length, record.window, record.stride))


def stream(blocks: Iterable[Array], window: int, stride: int, first: int = 0) -> Iterator[Piece]:
    """Yields the windows that `plan` makes of one context, while its tokens arrive in blocks."""
    waiting = np.empty(0, np.int32)
    skip = 0
    for block in blocks:
        waiting = np.concatenate([waiting, block])
        while len(waiting) > window + 1:
            yield Piece(waiting[: window + 1], skip, first)
            waiting, skip, first = waiting[stride:], window - stride, first + stride
    if len(waiting) > skip + 1:
        yield Piece(waiting, skip, first)


def batches(windows: Sequence[TextWindow], tokens: int) -> Iterator[list[TextWindow]]:
    """Groups windows of like size, so that a batch reads about `tokens` tokens with padding."""
    batch: list[TextWindow] = []
    longest = 0
    for window in sorted(windows, key=lambda window: (-window.size, -window.source_size)):
        longest = max(longest, window.source_size)
        if batch and (len(batch) + 1) * (batch[0].size + longest) > tokens:
            yield batch
            batch, longest = [], window.source_size
        batch.append(window)
    if batch:
        yield batch


def windows_batch(
    tokens: Array, windows: Sequence[TextWindow], device: torch.device
) -> dict[str, Tensor]:
    """Makes the model's inputs for windows of a text, padded on the right."""
    parts = [tokens[window.start : window.start + window.size] for window in windows]
    sources = [window.source for window in windows if window.source is not None]
    if not sources:
        return padded(parts, device)
    targets = padded(parts, device)
    return padded(sources, device) | {f"decoder_{name}": tensor for name, tensor in targets.items()}


def tokens_of_pass(model: nn.Module, batch_tokens: int | None = None) -> int:
    """The tokens of one forward pass; None chooses as many as the device works through quickly."""
    if batch_tokens is not None:
        return whole_number("batch_tokens", batch_tokens, 1)
    return _BATCH_TOKENS.get(input_device(model).type, 8192)


def window_keys(
    model: nn.Module,
    location: KeyLocation,
    tokens: Array,
    windows: Sequence[TextWindow],
    *,
    dim: int,
    dtype: str,
) -> list[Array]:
    """Computes the keys of each of some windows, where a datastore stores none."""
    ends = np.cumsum([window.entries for window in windows]).tolist()
    first = [0, *ends[:-1]]
    numbered = [
        replace(window, first_entry=entry) for window, entry in zip(windows, first, strict=True)
    ]
    settings: Any = {"dim": dim, "dtype": dtype, "batch_tokens": tokens_of_pass(model)}
    with evaluating(model):
        keys = np.concatenate(list(compute_keys(model, location, tokens, numbered, **settings)))
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
    """Yields groups of a few batches of windows, whose keys fit into the buffer.

    A killed job loses the group in work, so it is one batch at first, and at most a fifth of all.
    """
    fit = _BUFFER_BYTES // (dim * np.dtype(dtype).itemsize)
    most = min(fit, _BATCHES_AT_ONCE * batch_tokens)
    group: list[TextWindow] = []
    held = done = 0
    for window in windows:
        group.append(window)
        held += window.entries
        if held >= max(batch_tokens, min(most, done // 4)):
            yield group
            done += held
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
