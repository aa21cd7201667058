"""Loads llama.cpp and GGUF files; keeps what it logs, since a failed call says why only there."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from knn_logits.errors import MissingDependencyError, ModelError
from knn_logits.locks import cached_property
from knn_logits.printable import one_line

# Levels of ggml's log: GGML_LOG_LEVEL_WARN, _ERROR and _CONT, which continues the line before.
_WARN, _ERROR, _CONT = 3, 4, 5
# The longest text of a setting, such as a chat template.
_MAX_TEXT_BYTES = 1 << 20
_lines: deque[str] = deque(maxlen=16)
_lock = threading.Lock()


@cache
def llama() -> Any:
    """The functions of llama.cpp; `MissingDependencyError` if llama-cpp-python lacks any."""
    try:
        from llama_cpp import llama_cpp as functions
    except ImportError as error:
        raise MissingDependencyError(
            'a .gguf file needs llama.cpp: pip install "knn-logits[gguf]"'
        ) from error
    except (OSError, RuntimeError) as error:
        raise ModelError(
            f"llama.cpp cannot be loaded ({str(error).splitlines()[0]}); reinstall llama-cpp-python"
        ) from error
    for name in ("llama_model_load_from_file", "llama_get_memory", "llama_memory_seq_rm"):
        if not hasattr(functions, name):
            raise MissingDependencyError(
                f'this llama-cpp-python has no {name}: pip install --upgrade "knn-logits[gguf]"'
            )
    functions.llama_log_set(_log_callback(functions), ctypes.c_void_p(0))
    functions.llama_backend_init()
    return functions


@cache
def _log_callback(functions: Any) -> Any:
    def keep(level: int, text: bytes, _: Any) -> None:
        if level in (_WARN, _ERROR, _CONT):
            _lines.append(text.decode("utf-8", "replace").strip())

    return functions.llama_log_callback(keep)


def _opened(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


@cache
def tensors() -> Any:
    """The functions of ggml that read a tensor, which llama-cpp-python does not declare."""
    library = llama()._lib  # on most systems its symbols include those of the ggml it links to
    if not hasattr(library, "ggml_get_name"):
        from llama_cpp._ggml import libggml_base_path

        library = next(iter(map(_opened, libggml_base_path.glob("*ggml-base*"))), None)
    if not hasattr(library, "ggml_get_name"):
        raise MissingDependencyError(
            "this build of llama.cpp does not expose tensors, which kNN needs: reinstall "
            "llama-cpp-python with its shared libraries"
        )
    for name, result, arguments in (
        ("ggml_get_name", ctypes.c_char_p, [ctypes.c_void_p]),
        ("ggml_nbytes", ctypes.c_size_t, [ctypes.c_void_p]),
        (
            "ggml_backend_tensor_get",
            None,
            [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t],
        ),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@contextmanager
def logged() -> Iterator[deque[str]]:
    """Gives the warnings and errors that llama.cpp logs meanwhile."""
    llama()
    with _lock:
        _lines.clear()
        yield _lines


class Weights:
    """An open GGUF file; `ModelError` if it is no whole language model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        functions = llama()
        settings = functions.llama_model_default_params()
        with logged() as lines:
            handle = functions.llama_model_load_from_file(str(path).encode(), settings)
            if not handle:
                raise ModelError(
                    f"llama.cpp cannot read {path}{_reason(lines)}: download the file again, or "
                    "use a GGUF file of a language model"
                )
        self.handle = handle
        self._finalizer = weakref.finalize(self, functions.llama_model_free, handle)
        self.vocabulary = functions.llama_model_get_vocab(handle)
        if functions.llama_model_has_encoder(handle) or not self.size:
            raise ModelError(f"{path} is not a causal language model, which kNN needs")

    @cached_property
    def size(self) -> int:
        """The number of tokens in the vocabulary."""
        return int(llama().llama_vocab_n_tokens(self.vocabulary))

    @property
    def layers(self) -> int:
        return int(llama().llama_model_n_layer(self.handle))

    @property
    def dim(self) -> int:
        return int(llama().llama_model_n_embd(self.handle))

    @property
    def parameters(self) -> int:
        return int(llama().llama_model_n_params(self.handle))

    @property
    def context_length(self) -> int:
        """The most tokens that the model was trained to read."""
        return int(llama().llama_model_n_ctx_train(self.handle))

    @property
    def recurrent(self) -> bool:
        """Whether the cache holds recurrent states, which cannot be cut."""
        functions = llama()
        return bool(
            functions.llama_model_is_recurrent(self.handle)
            or functions.llama_model_is_hybrid(self.handle)
        )

    @cached_property
    def settings(self) -> dict[str, str]:
        """The file's metadata. Lists, such as that of the words, are left out."""
        functions, names = llama(), range(int(llama().llama_model_meta_count(self.handle)))
        pairs = (
            (
                _text(functions.llama_model_meta_key_by_index, self.handle, number),
                _text(functions.llama_model_meta_val_str_by_index, self.handle, number),
            )
            for number in names
        )
        return {name: value for name, value in pairs if not value.startswith("[")}

    @property
    def architecture(self) -> str:
        """The family of the model, such as "llama"."""
        return self.settings.get("general.architecture", "unknown")

    @property
    def quantisation(self) -> str:
        """llama.cpp's name of the precision of most weights, such as "Q4_1"."""
        words = _text(llama().llama_model_desc, self.handle).split()
        # "llama 135M Q4_1", "qwen2 7B Q4_K - Medium", "gpt2 ?B (guessed) all F32"
        passed_over = ("-", "all", "(guessed)")
        return "_".join(word for word in words[2:] if word not in passed_over) or "unknown"

    @property
    def chat_template(self) -> str | None:
        template = llama().llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", "replace") if template else None


def _reason(lines: Any) -> str:
    """The first of the logged lines that says what is wrong, in brackets."""
    for line in lines:
        text = one_line(line).strip()
        _, _, text = (
            text.partition(": ") if text.startswith(("llama_", "gguf_")) else ("", "", text)
        )
        if text:
            return f" ({text[:200].rstrip('.')})"
    return ""


def _text(function: Any, *arguments: Any) -> str:
    """Calls a function that writes a text, of a length that only it can tell."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = int(function(*arguments, buffer, size))
        if length < size or size >= _MAX_TEXT_BYTES:
            return buffer.value.decode("utf-8", "replace")
        size = min(length + 1, _MAX_TEXT_BYTES)
