"""The tokenizer of a GGUF file: llama.cpp cuts and spells, transformers fills templates."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import AddedToken, BatchEncoding, PreTrainedTokenizerBase

from knn_logits.engine.llama_cpp.context import Weights, llama
from knn_logits.locks import cached_property

_ROLES = {"bos_token": "bos", "eos_token": "eos", "pad_token": "pad"}
# Attributes of a token: LLAMA_TOKEN_ATTR_UNKNOWN, _UNUSED, _CONTROL, _USER_DEFINED.
_UNKNOWN, _UNUSED, _CONTROL, _USER_DEFINED = 1, 2, 8, 16
_SENTENCEPIECE = 1  # LLAMA_VOCAB_TYPE_SPM


class GGUFTokenizer(PreTrainedTokenizerBase):
    """Cuts text as llama.cpp does, and is called as a tokenizer of transformers."""

    is_fast = True  # it gives the place of each token in its text

    def __init__(self, weights: Weights) -> None:
        functions, self._weights = llama(), weights
        self._vocabulary = vocabulary = weights.vocabulary
        self._words = [
            functions.llama_vocab_get_text(vocabulary, token).decode("utf-8", "replace")
            for token in range(weights.size)
        ]
        self._ids = {word: token for token, word in reversed(list(enumerate(self._words)))}
        kinds = [functions.llama_vocab_get_attr(vocabulary, token) for token in range(weights.size)]
        added = _UNKNOWN | _UNUSED | _CONTROL | _USER_DEFINED
        self._added = {
            token: AddedToken(self._words[token], special=bool(kind & (_CONTROL | _UNKNOWN)))
            for token, kind in enumerate(kinds)
            if kind & added
        }
        self._spelled: dict[int, bytes] = {}
        self._begins = bool(functions.llama_vocab_get_add_bos(vocabulary))
        self._ends = bool(functions.llama_vocab_get_add_eos(vocabulary))
        roles = {
            name: self._words[token]
            for name, role in _ROLES.items()
            if (token := getattr(functions, f"llama_vocab_{role}")(vocabulary)) >= 0
        }
        unknown = weights.settings.get("tokenizer.ggml.unknown_token_id", "")
        if unknown.isdecimal() and int(unknown) < weights.size:
            roles["unk_token"] = self._words[int(unknown)]
        if "pad_token" not in roles and "eos_token" in roles:
            roles["pad_token"] = roles["eos_token"]
        super().__init__(  # type: ignore[no-untyped-call]
            name_or_path=str(weights.path),
            chat_template=weights.settings.get("tokenizer.chat_template"),
            model_max_length=weights.context_length,
            extra_special_tokens=[token.content for token in self._added.values() if token.special],
            backend="llama.cpp",
            **roles,
        )

    def __len__(self) -> int:
        return len(self._words)

    def __deepcopy__(self, memo: dict[int, Any]) -> GGUFTokenizer:
        return self  # it has no state that changes, and holds a file that cannot be copied

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that are no words of the vocabulary's model, by id."""
        return dict(self._added)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def get_added_vocab(self) -> dict[str, int]:
        """The ids of control tokens and of those that were added to the vocabulary."""
        return {token.content: number for number, token in self._added.items()}

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The ids of words; that of the unknown token for a word that there is not."""
        if isinstance(tokens, str):
            return self._ids.get(tokens, self.unk_token_id if tokens != self.unk_token else None)
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        if isinstance(ids, int):
            return self._words[ids]
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [self._words[int(token)] for token in ids if int(token) not in skipped]

    def _convert_id_to_token(self, index: int) -> str:
        return str(self._words[index])  # transformers looks here for stop strings

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return self._decode([self._ids[token] for token in tokens])

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, *_: Any, **__: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        if skip_special_tokens:
            skipped = set(self.all_special_ids)
            ids = [token for token in ids if token not in skipped]
        text = b"".join(map(self.bytes_of, ids))
        if self._prefix and ids and text.startswith(b" ") and ids[0] not in self._added:
            text = text[1:]
        return text.decode("utf-8", "replace")

    @cached_property
    def _prefix(self) -> bool:
        kind = llama().llama_vocab_type(self._vocabulary)
        added = self._weights.settings.get("tokenizer.ggml.add_space_prefix", "true")
        return kind == _SENTENCEPIECE and added == "true"

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token writes, which may be part of a character."""
        if token not in self._spelled and 0 <= token < len(self._words):
            size = 4 * len(self._words[token].encode()) + 8
            buffer = ctypes.create_string_buffer(size)
            length = llama().llama_token_to_piece(
                self._vocabulary, int(token), buffer, size, 0, True
            )
            self._spelled[token] = buffer.raw[:length]
        return self._spelled.get(token, b"")

    def _cut(self, text: str, *, controls: bool) -> list[int]:
        """Cuts a text, without the tokens that stand around every text."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 8
        buffer = (ctypes.c_int32 * size)()
        count = llama().llama_tokenize(
            self._vocabulary, data, len(data), buffer, size, False, controls
        )
        return list(buffer[:count])

    def _encode_plus(self, *_: Any, **options: Any) -> BatchEncoding[Any]:
        text, return_tensors = options["text"], options.get("return_tensors")
        texts = [text] if isinstance(text, str) else list(text)
        split = options.get("split_special_tokens")
        controls = not (self.split_special_tokens if split is None else split)
        adds = options.get("add_special_tokens", True)
        before = [self.bos_token_id] if adds and self._begins else []
        after = [self.eos_token_id] if adds and self._ends else []
        encodings = [
            Encoding(self, part, self._cut(part, controls=controls), before, after)
            for part in texts
        ]
        columns: dict[str, list[list[int]]] = {
            "input_ids": [list(encoding.ids) for encoding in encodings]
        }
        if options.get("return_special_tokens_mask"):
            columns["special_tokens_mask"] = [
                encoding.special_tokens_mask for encoding in encodings
            ]
        padded = self.pad(
            columns,
            padding=options["padding_strategy"].value,
            max_length=options.get("max_length"),
            pad_to_multiple_of=options.get("pad_to_multiple_of"),
            padding_side=options.get("padding_side"),
            return_attention_mask=options.get("return_attention_mask") is not False,
        )
        values: dict[str, Any] = dict(padded)
        if isinstance(text, str) and return_tensors is None:
            values = {name: rows[0] for name, rows in values.items()}
        parts: Any = encodings
        return BatchEncoding(values, encoding=parts, tensor_type=return_tensors)


class Encoding:
    """The tokens of one text and their places in it."""

    n_sequences = 1

    def __init__(
        self,
        tokenizer: GGUFTokenizer,
        text: str,
        ids: list[int],
        before: list[int],
        after: list[int],
    ) -> None:
        self._tokenizer, self._text, self._inner = tokenizer, text, ids
        self._around = len(before), len(after)
        self.ids = [*before, *ids, *after]

    @property
    def special_tokens_mask(self) -> list[int]:
        """1 for the tokens that stand around every text."""
        before, after = self._around
        return [1] * before + [0] * len(self._inner) + [1] * after

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """The characters [first, last) of each token. A cut character belongs to all its tokens."""
        tokenizer, text = self._tokenizer, self._text
        spelled = [tokenizer.bytes_of(token) for token in self._inner]
        ends = np.cumsum(np.array([len(part) for part in spelled], np.int64))
        data = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        if len(ends) and ends[-1] == len(data) + 1 and spelled[0][:1] == b" ":
            ends -= 1  # the space before the text is no part of it
        starts = np.concatenate([[0], ends])[:-1].astype(np.int64)
        # By the place of a byte, the number of characters that begin before it.
        begins = np.concatenate([[0], np.cumsum((data & 0xC0) != 0x80)]).astype(np.int64)
        first = begins[np.clip(starts + 1, 0, len(data))] - 1
        last = begins[np.clip(ends, 0, len(data))]
        inner: list[tuple[int, int]] = list(
            zip(np.maximum(first, 0).tolist(), last.tolist(), strict=True)
        )
        before, after = self._around
        return [(0, 0)] * before + inner + [(0, 0)] * after
