"""How a long text is cut into windows so that every token is predicted once. Numbers only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from knn_logits.arrays import Array
from knn_logits.config import WindowConfig
from knn_logits.errors import ConfigError

_LARGEST_DEFAULT = 1024


@dataclass(frozen=True)
class Piece:
    """A window together with its tokens, for texts that are never held as a whole.

    Attributes:
        tokens: int32 [size + 1], what the model reads and the token after it.
        skip: As in `TextWindow`.
        first: Place of its first token in the text.
        source: int32 [source tokens], what an encoder reads beside it; None for a causal model.
    """

    tokens: Array
    skip: int
    first: int
    source: Array | None = None

    @property
    def size(self) -> int:
        """Tokens the model reads."""
        return len(self.tokens) - 1


@dataclass(frozen=True)
class TextWindow:
    """One forward pass over part of a text.

    Attributes:
        start: The first token it reads.
        size: Tokens it reads.
        skip: States at its beginning that an earlier window has already given. State j predicts
            the token `start + j + 1`.
        first_entry: The entry of its first state that counts.
        context: Number of the context that it lies in.
        source: int32 [source tokens], what an encoder reads beside it; None for a causal model.
    """

    start: int
    size: int
    skip: int
    first_entry: int
    context: int = field(default=0, compare=False)
    source: Array | None = field(default=None, compare=False, repr=False)

    @property
    def entries(self) -> int:
        """States that count."""
        return self.size - self.skip

    @property
    def source_size(self) -> int:
        """Tokens an encoder reads."""
        return 0 if self.source is None else len(self.source)


def resolve(config: WindowConfig, context_length: int | None) -> tuple[int, int]:
    """Window and stride for a model.

    Args:
        config: What the user asked for.
        context_length: Tokens the model can read at once, None when it has no limit.

    Raises:
        ConfigError: when the model cannot read so many tokens at once.
    """
    window = config.window or min(context_length or _LARGEST_DEFAULT, _LARGEST_DEFAULT)
    if context_length is not None and window > context_length:
        raise ConfigError(
            f"window {window} is longer than the model's context of {context_length} tokens: "
            f"take --window {context_length} or less"
        )
    stride = config.stride or max(1, window // 2)
    if stride > window:
        raise ConfigError(f"stride {stride} is larger than window {window}: take a smaller stride")
    return window, stride


def plan(
    first: Iterable[int],
    length: Iterable[int],
    window: int,
    stride: int,
) -> Iterator[TextWindow]:
    """The windows of several contexts, in order.

    Every token but a context's first is predicted once, with at least `window - stride` tokens
    before it where the context has them.

    Args:
        first: First token of each context.
        length: Tokens of each context.
        window: Tokens read at once.
        stride: Tokens by which the window moves on.
    """
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


def stream(blocks: Iterable[Array], window: int, stride: int, first: int = 0) -> Iterator[Piece]:
    """The windows that `plan` gives one context, while its tokens come in block by block.

    Args:
        blocks: int32 [tokens] each, one after another.
        window: Tokens read at once.
        stride: Tokens by which the window moves on.
        first: Place of the context's first token in the text.

    Yields:
        One piece a window. No more than a window and a block are in memory.
    """
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
    """Groups windows of like size, so that a batch reads about `tokens` tokens with padding.

    What an encoder reads counts as well.
    """
    batch: list[TextWindow] = []
    longest = 0
    for window in sorted(windows, key=lambda one: (-one.size, -one.source_size)):
        longest = max(longest, window.source_size)
        if batch and (len(batch) + 1) * (batch[0].size + longest) > tokens:
            yield batch
            batch, longest = [], window.source_size
        batch.append(window)
    if batch:
        yield batch
