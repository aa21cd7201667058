"""How a long text is cut into windows so that every token is predicted once. Numbers only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.settings.passes import WindowConfig
from knn_logits.store.entries import Contexts
from knn_logits.store.records import WindowRecord

_LARGEST_DEFAULT = 1024


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
        """Number of tokens that an encoder reads."""
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
    """Yields the windows of several contexts, in order."""
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
    """The windows of a datastore's text."""
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
