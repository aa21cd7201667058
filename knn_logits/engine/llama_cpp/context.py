"""Decodes tokens in llama.cpp: logits, states of named tensors (by a callback), a cache to cut."""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.engine.llama_cpp.llama_library import Weights, llama, logged, tensors
from knn_logits.errors import ModelError

# The most tokens of one decode.
CHUNK = 256
# Number of tokens that a context is made for at first; it then doubles.
_SMALLEST = 512


class Context:
    """The cache of some texts of `size` tokens together; it keeps the values of tensors `names`."""

    def __init__(
        self,
        weights: Weights,
        size: int,
        texts: int,
        names: Sequence[str],
        threads: int,
        listing: _Names | None = None,
    ) -> None:
        functions = llama()
        settings = functions.llama_context_default_params()
        settings.n_ctx = self.size = max(_SMALLEST, size)
        settings.n_batch = settings.n_ubatch = CHUNK
        settings.n_seq_max = texts
        settings.n_threads = settings.n_threads_batch = threads
        settings.kv_unified = True  # one batch stays one, in its order
        settings.no_perf = True
        if not functions.llama_supports_gpu_offload():
            # On a processor it takes several times as long for a few tokens after a long text.
            settings.flash_attn_type = functions.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.weights, self.names = weights, tuple(names)
        self.texts, self.threads = texts, threads
        self._states = _States(self.names)
        listener = self._states if names else listing
        if listener is not None:
            settings.cb_eval = listener.callback
        with logged() as lines:
            handle = functions.llama_init_from_model(weights.handle, settings)
            if not handle:
                reason = next(iter(lines), "no reason given")
                raise ModelError(
                    f"llama.cpp is out of memory for {self.size} tokens of {weights.path} "
                    f"({reason}): use a shorter text, or free some memory"
                )
        self.handle = handle
        self._memory = functions.llama_get_memory(handle)
        self._batch = functions.llama_batch_init(CHUNK, 0, 1)
        self._finalizer = weakref.finalize(self, _free, handle, self._batch, weights, listener)
        self.lengths = [0] * texts
        self._shape: tuple[int, str | None] | None = None
        self._recurrent = weights.recurrent  # such a cache could not read a token twice

    def decode(
        self, rows: Array, tokens: Array, *, logits: int, last: str | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Reads a token of each row: scores of the last `logits`, and states by name."""
        count, batch, lengths = len(tokens), self._batch, self.lengths
        before = list(lengths)
        for place, (row, token) in enumerate(zip(rows.tolist(), tokens.tolist(), strict=True)):
            batch.token[place] = token
            batch.pos[place] = lengths[row]
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = row
            # llama.cpp computes the last layer for scored tokens alone.
            batch.logits[place] = bool(self.names) or place >= count - logits
            lengths[row] += 1
        batch.n_tokens = count
        last = last if not logits and self.names == (last,) else None
        code = self._run(last, by_name=self._recurrent or self._shape != (count, last))
        self._shape = count, last
        if not code and not self._states.whole:
            self._forget_from(before)  # a new graph has its tensors elsewhere
            code = self._run(last, by_name=True)
        if code:
            self.lengths = before
            self._forget_from(before)
            raise ModelError(
                f"llama.cpp could not read {count} tokens after {max(before)} (code {code}): use "
                "a shorter text"
            )
        states = {name: self._states.of(name, count) for name in self.names}
        size = self.weights.size
        if not logits:
            return np.empty((0, size), np.float32), states
        scored = count if self.names else logits
        pointer = llama().llama_get_logits(self.handle)
        whole = np.ctypeslib.as_array(pointer, (scored, size))
        return whole[scored - logits :].copy(), states

    def _run(self, last: str | None, *, by_name: bool) -> int:
        self._states.begin(last, by_name=by_name)
        with _interruptible():
            return int(llama().llama_decode(self.handle, self._batch))

    def cut(self, row: int, length: int) -> None:
        """Forgets the tokens of a text from a position on."""
        if length < self.lengths[row]:
            if not llama().llama_memory_seq_rm(self._memory, row, length, -1):
                raise ModelError(
                    f"the cache of {self.weights.path} cannot be truncated, since it contains "
                    "recurrent states: generate without drafts"
                )
            self.lengths[row] = length

    def reorder(self, rows: Sequence[int]) -> None:
        """Goes on from the texts of `rows`, as beam search does."""
        functions, memory = llama(), self._memory
        parts = [self._taken(row) for row in rows]
        functions.llama_memory_clear(memory, True)
        for row, part in enumerate(parts):
            self._put(row, part)
        self.lengths = [self.lengths[row] for row in rows]

    def clear(self) -> None:
        llama().llama_memory_clear(self._memory, False)
        self.lengths = [0] * self.texts

    def moved(self, other: Context) -> Context:
        """Gives the texts of this context to a larger one."""
        for row, length in enumerate(self.lengths):
            if length:
                other._put(row, self._taken(row))
        other.lengths = list(self.lengths)
        return other

    def _taken(self, row: int) -> Any:
        functions = llama()
        size = functions.llama_state_seq_get_size(self.handle, row)
        buffer = (ctypes.c_uint8 * size)()
        functions.llama_state_seq_get_data(self.handle, buffer, size, row)
        return buffer

    def _put(self, row: int, state: Any) -> None:
        if not llama().llama_state_seq_set_data(self.handle, state, len(state), row):
            raise ModelError("llama.cpp is out of memory: free some memory")

    def _forget_from(self, lengths: Sequence[int]) -> None:
        for row, length in enumerate(lengths):
            llama().llama_memory_seq_rm(self._memory, row, length, -1)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raises what a callback raised, such as an interrupt, since no exception passes through C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    errors: list[BaseException] = []
    printed = sys.unraisablehook

    def keep(raised: Any) -> None:
        if raised.exc_value is None or getattr(raised.object, "__module__", None) != __name__:
            printed(raised)
        else:
            errors.append(raised.exc_value)

    sys.unraisablehook = keep
    try:
        yield
    finally:
        sys.unraisablehook = printed
    if errors:
        raise errors[0]


class _States:
    """Copies named tensors while the graph is computed, known by their addresses, which stay."""

    def __init__(self, names: Sequence[str]) -> None:
        self._buffers: dict[bytes, bytearray] = {name.encode(): bytearray() for name in names}
        self._addresses: set[int] = set()
        self._reads_names = True
        self._last: bytes | None = None
        self.callback = llama().ggml_backend_sched_eval_callback(self._function())

    def begin(self, last: str | None, *, by_name: bool) -> None:
        """Drops what was copied before."""
        self._last, self._reads_names = last.encode() if last else None, by_name
        if by_name:
            self._addresses.clear()
        for buffer in self._buffers.values():
            buffer.clear()

    @property
    def whole(self) -> bool:
        """Whether each tensor was there."""
        return all(self._buffers.values())

    def of(self, name: str, tokens: int) -> Array:
        numbers = np.frombuffer(bytearray(self._buffers[name.encode()]), np.float32)
        if not len(numbers) or len(numbers) % tokens:
            raise ModelError(
                f"{name} does not contain one vector per token: choose another key with --key"
            )
        return numbers.reshape(tokens, -1)

    def _function(self) -> Any:
        ggml, buffers, addresses = tensors(), self._buffers, self._addresses
        name_of, bytes_of, copy = ggml.ggml_get_name, ggml.ggml_nbytes, ggml.ggml_backend_tensor_get

        def taken(tensor: int, asks: bool, _: Any) -> bool:
            if asks:
                if self._reads_names and name_of(tensor) in buffers:
                    addresses.add(tensor)
                return tensor in addresses
            name = name_of(tensor)
            if name in buffers:
                size = bytes_of(tensor)
                piece = ctypes.create_string_buffer(size)
                copy(tensor, piece, 0, size)
                buffers[name] += piece.raw
            return bool(name != self._last)

        return taken


class _Names:
    """Lists the tensors of a graph and copies none."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        name_of, names = tensors().ggml_get_name, self.names

        def listed(tensor: int, _: bool, __: Any) -> bool:
            names[name_of(tensor).decode("utf-8", "replace")] = None
            return False

        self.callback = llama().ggml_backend_sched_eval_callback(listed)


def tensor_names(weights: Weights) -> list[str]:
    """The tensors of a pass through the model, in their order."""
    listing = _Names()
    context = Context(weights, 2, 1, (), 1, listing)
    context.decode(np.zeros(2, np.int64), np.zeros(2, np.int64), logits=2)
    return list(listing.names)


def _free(handle: Any, batch: Any, *_: Any) -> None:
    functions = llama()
    functions.llama_batch_free(batch)
    functions.llama_free(handle)
