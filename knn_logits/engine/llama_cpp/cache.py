"""A cache of texts in llama.cpp, as transformers passes it from one forward pass to the next."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.llama_cpp.context import CHUNK, Context
from knn_logits.engine.llama_cpp.llama_library import Weights
from knn_logits.errors import LimitError

# Number of tokens from which a pass takes longer to score them than to read one more.
_MANY = 24


class Contexts:
    """The contexts of a model. One that is free again is used for the next text."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._free: list[Context] = []
        self._lock = threading.Lock()

    def take(self, size: int, texts: int, names: Sequence[str]) -> Context:
        """An empty context for a number of tokens and texts; `LimitError` if it cannot be."""
        most = self._weights.context_length
        if size > most:
            raise LimitError(
                f"the text has {size:,} tokens, but the model's context is {most:,}: shorten the "
                "prompt, or generate fewer tokens"
            )
        # Doubled sizes are reused more often than exact ones.
        whole = texts * min(most, 1 << max(9, (size - 1).bit_length()))
        threads = torch.get_num_threads()
        with self._lock:
            for context in self._free:
                fits = context.size >= texts * size and context.texts == texts
                if fits and context.names == tuple(names) and context.threads == threads:
                    self._free.remove(context)
                    return context
        return Context(self._weights, whole, texts, names, threads)

    def give_back(self, context: Context) -> None:
        context.clear()
        with self._lock:
            self._free = [context, *self._free[:1]]


class TextCache:
    """The texts that a model has read, one in each row. `crop` and `reorder_cache` change them."""

    is_compileable = False

    def __init__(self, contexts: Contexts, texts: int, names: Sequence[str], size: int) -> None:
        self._contexts, self._texts = contexts, texts
        self._context = contexts.take(size, texts, names)
        self._release = weakref.finalize(self, contexts.give_back, self._context)
        # Columns that were read, those of padding included, as transformers counts.
        self._columns = 0

    def get_seq_length(self, *_: int) -> int:
        return self._columns

    def crop(self, max_length: int) -> None:
        """Forgets the columns after `max_length`; or as many as it says, if it is negative."""
        dropped = -max_length if max_length < 0 else self._columns - max_length
        if dropped > 0:
            for row, length in enumerate(self._context.lengths):
                self._context.cut(row, max(0, length - dropped))
            self._columns -= dropped

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Goes on from these rows."""
        self._context.reorder(beam_idx.tolist())

    def read(
        self, ids: Array, mask: Array, names: Sequence[str], *, keep: int, last: str | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Reads columns `ids` but padding: scores of the last `keep`, and states by name."""
        rows, columns = ids.shape
        context = self._with_room(int(mask.sum(1).max()), tuple(names))
        # Two tokens or more are read by one kernel, and so to the same bits as in any other pass.
        parts = list(_parts(mask, columns - max(2, keep) if last and keep else columns))
        if len(parts) == 1 and len(parts[0][0]) == rows * columns:  # nothing to put together
            at, places = parts[0]
            logits, values = context.decode(at, ids[at, places], logits=rows * keep, last=last)
            scores = logits.reshape(rows, keep, logits.shape[-1])
            states = {name: part.reshape(rows, columns, -1) for name, part in values.items()}
        else:
            scores, states = self._in_parts(context, ids, parts, keep, last)
        self._columns += columns
        return scores, states

    @staticmethod
    def _in_parts(
        context: Context,
        ids: Array,
        parts: Sequence[tuple[Array, Array]],
        keep: int,
        last: str | None,
    ) -> tuple[Array, dict[str, Array]]:
        rows, columns = ids.shape
        scores = np.zeros((rows, keep, context.weights.size), np.float32)
        states: dict[str, Array] = {}
        for at, places in parts:
            scored = int((places >= columns - keep).sum())
            # The columns of one row ascend, so the scored ones are the last of them.
            logits, values = context.decode(at, ids[at, places], logits=scored, last=last)
            if scored:
                at_end = slice(len(at) - scored, None)
                scores[at[at_end], places[at_end] - (columns - keep)] = logits
            for name, vectors in values.items():
                if name not in states:
                    states[name] = np.zeros((rows, columns, vectors.shape[1]), np.float32)
                states[name][at, places] = vectors
        return scores, states

    def _with_room(self, tokens: int, names: tuple[str, ...]) -> Context:
        longest = max(self._context.lengths) + tokens
        full = longest * self._texts > self._context.size
        if full or not set(names) <= set(self._context.names):
            other = self._contexts.take(longest, self._texts, names)
            self._context.moved(other)
            self._release()
            self._context = other
            self._release = weakref.finalize(self, self._contexts.give_back, other)
        return self._context


def _parts(mask: Array, unscored: int) -> Iterator[tuple[Array, Array]]:
    """Yields rows and columns to read at once: a step of all rows, or parts of each row."""
    rows, columns = mask.shape
    if columns == 1:
        at = np.flatnonzero(mask[:, 0])
        yield at, np.zeros(len(at), np.int64)
        return
    ends = [unscored, columns] if _MANY <= unscored < columns else [columns]
    for row in range(rows):
        places = np.flatnonzero(mask[row])
        for part in np.split(places, np.searchsorted(places, ends)):
            for first in range(0, len(part), CHUNK):
                chunk = part[first : first + CHUNK]
                yield np.full(len(chunk), row, np.int64), chunk
