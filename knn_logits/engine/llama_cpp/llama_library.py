"""Loads llama.cpp, and keeps what it logs, since a failed call says why only there."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from knn_logits.errors import MissingDependencyError, ModelError

# Levels of ggml's log: GGML_LOG_LEVEL_WARN, _ERROR and _CONT, which continues the line before.
_WARN, _ERROR, _CONT = 3, 4, 5
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
