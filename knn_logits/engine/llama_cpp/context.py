"""Reads tokens in llama.cpp: scores, states of named tensors (by a callback), a cache to cut."""

from __future__ import annotations

import ctypes
import logging
import signal
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import LimitError, MissingDependencyError, ModelError
from knn_logits.locks import cached_property

# The most tokens of one decode.
_CHUNK = 256
# Number of tokens that a context is made for at first; it then doubles.
_SMALLEST = 512


@cache
def llama() -> Any:
    """The functions of llama.cpp; `MissingDependencyError` if llama-cpp-python is missing."""
    try:
        from llama_cpp import llama_cpp as functions
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingDependencyError(
            f'a .gguf file needs llama.cpp ({error}): pip install "knn-logits[gguf]"'
        ) from error
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
    functions.llama_backend_init()
    return functions


@cache
def _tensors() -> Any:
    """The functions of ggml that read a tensor, which llama-cpp-python does not declare."""
    library = llama()._lib  # on most systems its symbols include those of the ggml it links to
    if not hasattr(library, "ggml_get_name"):
        from llama_cpp._ggml import libggml_base_path

        library = ctypes.CDLL(str(next(libggml_base_path.glob("*ggml-base*"))))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.ggml_get_name.restype = ctypes.c_char_p
    library.ggml_nbytes.restype = size
    library.ggml_get_name.argtypes = library.ggml_nbytes.argtypes = [pointer]
    library.ggml_backend_tensor_get.argtypes = [pointer, pointer, size, size]
    return library


class Weights:
    """An open GGUF file; `ModelError` if it is no whole language model."""

    def __init__(self, path: Path) -> None:
        self.path, functions = path, llama()
        settings = functions.llama_model_default_params()
        self.handle = functions.llama_model_load_from_file(str(path).encode(), settings)
        if not self.handle:
            raise ModelError(
                f"llama.cpp cannot read {path}: download the file again, or use a GGUF file of a "
                "language model"
            )
        self._finalizer = weakref.finalize(self, functions.llama_model_free, self.handle)
        self.vocabulary = functions.llama_model_get_vocab(self.handle)
        self.size = int(functions.llama_vocab_n_tokens(self.vocabulary))
        self.layers = int(functions.llama_model_n_layer(self.handle))
        self.dim = int(functions.llama_model_n_embd(self.handle))
        # The most tokens that the model was trained to read.
        self.context_length = int(functions.llama_model_n_ctx_train(self.handle))
        # A cache of recurrent states cannot be cut.
        kinds = functions.llama_model_is_recurrent, functions.llama_model_is_hybrid
        self.recurrent = any(is_kind(self.handle) for is_kind in kinds)
        if functions.llama_model_has_encoder(self.handle) or not self.size:
            raise ModelError(f"{path} is not a causal language model, which kNN needs")

    @cached_property
    def settings(self) -> dict[str, str]:
        """The file's metadata. Lists, such as that of the words, are left out."""
        functions = llama()
        pairs = (
            (
                _text(functions.llama_model_meta_key_by_index, self.handle, number),
                _text(functions.llama_model_meta_val_str_by_index, self.handle, number),
            )
            for number in range(int(functions.llama_model_meta_count(self.handle)))
        )
        return {name: value for name, value in pairs if not value.startswith("[")}

    @property
    def quantisation(self) -> str:
        """llama.cpp's name of the precision of most weights, such as "Q4_1"."""
        words = _text(llama().llama_model_desc, self.handle).split()
        # "llama 135M Q4_1", "qwen2 7B Q4_K - Medium", "gpt2 ?B (guessed) all F32"
        passed_over = ("-", "all", "(guessed)")
        return "_".join(word for word in words[2:] if word not in passed_over) or "unknown"


def _text(function: Any, *arguments: Any) -> str:
    """Calls a function that writes a text, and returns the text's length."""
    buffer = ctypes.create_string_buffer(256)
    length = int(function(*arguments, buffer, len(buffer)))
    if length >= len(buffer):
        buffer = ctypes.create_string_buffer(length + 1)
        function(*arguments, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


class Context:
    """The cache of one text, for `size` tokens; it takes the values of tensors `names`."""

    def __init__(self, weights: Weights, size: int, names: Sequence[str]) -> None:
        most, functions = weights.context_length, llama()
        if size > most:
            raise LimitError(
                f"the text has {size:,} tokens, but the model's context is {most:,}: shorten the "
                "prompt, or generate fewer tokens"
            )
        settings = functions.llama_context_default_params()
        self.size = min(most, max(_SMALLEST, 1 << (size - 1).bit_length()))
        settings.n_ctx = self.size
        settings.n_batch = settings.n_ubatch = _CHUNK
        settings.no_perf = True
        if not functions.llama_supports_gpu_offload():
            # On a processor it takes several times as long for a few tokens after a long text.
            settings.flash_attn_type = functions.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._listener = _Listener(names)
        if names:
            settings.cb_eval = self._listener.callback
        self._handle = functions.llama_init_from_model(weights.handle, settings)
        if not self._handle:
            raise ModelError(
                f"llama.cpp is out of memory for {self.size} tokens of {weights.path}: use a "
                "shorter text, or free some memory"
            )
        self._memory = functions.llama_get_memory(self._handle)
        self._batch = functions.llama_batch_init(_CHUNK, 0, 1)
        weakref.finalize(self, _free, self._handle, self._batch, weights, self._listener)
        self.weights, self.names, self.length = weights, tuple(names), 0

    def read(
        self, tokens: Sequence[int], scored: int, *, keys_only: bool = False
    ) -> tuple[Array, dict[str, Array]]:
        """Reads further tokens, and returns scores and states of the last `scored` of them.

        float32 [scored, vocabulary], none for `keys_only`; and [scored, dim] by a tensor's name.
        """
        threads, functions = torch.get_num_threads(), llama()
        functions.llama_set_n_threads(self._handle, threads, threads)
        logits: list[Array] = []
        states: dict[str, list[Array]] = {name: [] for name in self.names}
        for first in range(0, len(tokens), _CHUNK):
            part = tokens[first : first + _CHUNK]
            wanted = min(len(part), max(0, first + len(part) - (len(tokens) - scored)))
            self._decode(part, wanted, keys_only=keys_only)
            if not wanted:
                continue
            if not keys_only:
                pointer = functions.llama_get_logits(self._handle)
                rows = np.ctypeslib.as_array(pointer, (wanted, self.weights.size))
                logits.append(rows.copy())
            for name, parts in states.items():
                parts.append(self._listener.of(name, self.weights.dim)[-wanted:])
        empty = np.empty((0, self.weights.size), np.float32)
        whole = {name: np.concatenate(parts) for name, parts in states.items() if parts}
        return np.concatenate([empty, *logits]), whole

    def _decode(self, tokens: Sequence[int], wanted: int, *, keys_only: bool) -> None:
        batch = self._batch
        for place, token in enumerate(tokens):
            batch.token[place] = token
            batch.pos[place] = self.length + place
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = 0
            # llama.cpp computes the last layer for scored tokens alone.
            batch.logits[place] = place >= len(tokens) - wanted
        batch.n_tokens = len(tokens)
        self._listener.begin(ends=keys_only)
        with _interruptible():
            code = llama().llama_decode(self._handle, batch)
        if code:
            self.cut(self.length)
            raise ModelError(
                f"llama.cpp could not read {len(tokens)} tokens after {self.length} (code {code}): "
                "use a shorter text"
            )
        self.length += len(tokens)

    def cut(self, length: int) -> None:
        """Forgets the tokens from a position on."""
        if not llama().llama_memory_seq_rm(self._memory, 0, length, -1):
            raise ModelError(
                f"the cache of {self.weights.path} cannot be truncated, since it contains "
                "recurrent states: generate without drafts"
            )
        self.length = min(self.length, length)

    def clear(self) -> None:
        llama().llama_memory_clear(self._memory, False)
        self.length = 0

    def saved(self) -> tuple[int, Any]:
        """The text of this context, for `restore`."""
        size = llama().llama_state_seq_get_size(self._handle, 0)
        state = (ctypes.c_uint8 * size)()
        llama().llama_state_seq_get_data(self._handle, state, size, 0)
        return self.length, state

    def restore(self, saved: tuple[int, Any]) -> None:
        """Goes on from a text that a context has saved."""
        self.clear()
        self.length, state = saved
        if self.length:
            llama().llama_state_seq_set_data(self._handle, state, len(state), 0)


def _free(handle: Any, batch: Any, *_: Any) -> None:
    llama().llama_batch_free(batch)
    llama().llama_free(handle)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Keeps an interrupt until llama.cpp is done, since no exception passes through C."""
    interrupt = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(interrupt):
        yield
        return
    received: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *signalled: received.append(signalled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if received:
        interrupt(*received[0])


class _Listener:
    """Copies named tensors while a pass is computed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._values = {name.encode(): bytearray() for name in names}
        self._ends = False
        self.callback = llama().ggml_backend_sched_eval_callback(self._on_tensor)

    def begin(self, *, ends: bool) -> None:
        """Drops the values of the pass before; `ends` stops this one at the first tensor."""
        self._ends = ends and len(self._values) == 1
        for value in self._values.values():
            value.clear()

    def of(self, name: str, dim: int) -> Array:
        """The values of a tensor, float32 [tokens, dim]; no tokens if there is no such tensor."""
        values = self._values[name.encode()]
        return np.frombuffer(bytes(values), np.float32).reshape(-1, dim)

    def _on_tensor(self, tensor: int, asks: bool, _: Any) -> bool:
        ggml = _tensors()
        values = self._values.get(ggml.ggml_get_name(tensor))
        if asks or values is None:
            return values is not None
        piece = ctypes.create_string_buffer(ggml.ggml_nbytes(tensor))
        ggml.ggml_backend_tensor_get(tensor, piece, 0, len(piece))
        values += piece.raw
        return not self._ends


class TextCache:
    """The texts that a model has read, one in each row, as transformers passes them on."""

    is_compileable = False

    def __init__(self, weights: Weights, rows: int) -> None:
        self._weights = weights
        self._contexts: list[Context | None] = [None] * rows
        # Columns that were read, those of padding included, as transformers counts.
        self._columns = 0

    def get_seq_length(self, *_: int) -> int:
        return self._columns

    def context(self, row: int, tokens: int, names: Sequence[str]) -> Context:
        """The context of a row, with room for further tokens."""
        before = self._contexts[row]
        length = 0 if before is None else before.length
        if before is None or length + tokens > before.size or before.names != tuple(names):
            after = self._contexts[row] = Context(self._weights, length + tokens, names)
            if before is not None:
                after.restore(before.saved())
            return after
        return before

    def advance(self, columns: int) -> None:
        """Counts columns that every row has read."""
        self._columns += columns

    def crop(self, max_length: int) -> None:
        """Forgets the columns after `max_length`; or as many as it says, if it is negative."""
        dropped = -max_length if max_length < 0 else self._columns - max_length
        if dropped > 0:
            for context in filter(None, self._contexts):
                context.cut(max(0, context.length - dropped))
            self._columns -= dropped

    def reorder_cache(self, beam_idx: Tensor) -> None:
        contexts = [context for context in self._contexts if context is not None]
        saved = [context.saved() for context in contexts]
        for context, row in zip(contexts, beam_idx.tolist(), strict=True):
            context.restore(saved[row])
