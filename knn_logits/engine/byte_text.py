"""The text of byte-level tokens, from a table of bytes: some ten times as fast as decoding them."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from typing import Any

_TABLES: weakref.WeakKeyDictionary[Any, ByteText | None] = weakref.WeakKeyDictionary()
# Number of tokens that are compared with the tokenizer's own text before a table is used.
_COMPARED = 512


def byte_text(tokenizer: Any) -> ByteText | None:
    """The table of a tokenizer; None where its tokens are not plain bytes."""
    try:
        return _TABLES[tokenizer]
    except KeyError:
        table = _TABLES[tokenizer] = _checked(tokenizer)
        return table
    except TypeError:  # no hash, or no weak reference
        return None


class ByteText:
    """Decodes ids as a byte-level tokenizer does, special tokens included."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._bytes: dict[int, bytes] = {}
        self._byte_of = _byte_of_character()

    def __call__(self, ids: Sequence[int]) -> str:
        """Returns the text. What is no UTF-8 becomes U+FFFD."""
        texts = self._bytes
        try:
            text = b"".join([texts[token] for token in ids])
        except KeyError:
            text = b"".join([texts.get(token) or self._of(int(token)) for token in ids])
        return text.decode("utf-8", "replace")

    def _of(self, token: int) -> bytes:
        word = self._backend.id_to_token(token)
        if word is None:  # an id that may be added later
            return b""
        self._bytes[token] = spelled = self._written(word)
        return spelled

    def _written(self, word: str) -> bytes:
        try:
            return bytes(self._byte_of[character] for character in word)
        except KeyError:  # an added token, which is not written in the alphabet of bytes
            return word.encode()


def _checked(tokenizer: Any) -> ByteText | None:
    from tokenizers import decoders
    from transformers import PreTrainedTokenizerFast

    backend, kind = getattr(tokenizer, "backend_tokenizer", None), type(tokenizer)
    if backend is None or not isinstance(backend.decoder, decoders.ByteLevel):
        return None
    plain = PreTrainedTokenizerFast
    if (kind.decode, getattr(kind, "_decode", None)) != (plain.decode, plain._decode):
        return None
    table, size = ByteText(backend), backend.get_vocab_size()
    added = list(getattr(tokenizer, "added_tokens_decoder", {}))
    ids = [*random.Random(0).choices(range(size), k=_COMPARED), *added, *range(min(size, 8))]
    same = table(ids) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    return table if same else None


def _byte_of_character() -> dict[str, int]:
    """The alphabet of GPT-2: printable bytes stand for themselves, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + number): byte for number, byte in enumerate(rest)
    }
