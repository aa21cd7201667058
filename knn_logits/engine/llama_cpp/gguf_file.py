"""A GGUF file in llama.cpp: its settings and its vocabulary. It knows nothing of transformers."""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path
from typing import Any

from knn_logits.engine.llama_cpp.llama_library import llama, logged
from knn_logits.errors import ModelError
from knn_logits.locks import cached_property
from knn_logits.printable import one_line

_MAGIC = b"GGUF"
# The longest text of a setting, such as a chat template.
_MAX_TEXT_BYTES = 1 << 20


class Weights:
    """An open GGUF file, or its vocabulary; `ModelError` if it is no whole language model."""

    def __init__(self, path: Path, *, vocabulary_only: bool = False) -> None:
        self.path = path
        _check_magic(path)
        functions = llama()
        settings = functions.llama_model_default_params()
        settings.vocab_only = vocabulary_only
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


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelError(f"the file {path} cannot be read: {error.strerror}") from error
    if start != _MAGIC:
        raise ModelError(
            f"{path} is not a GGUF file, since it does not begin with GGUF: use a file made for "
            "llama.cpp"
        )


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
