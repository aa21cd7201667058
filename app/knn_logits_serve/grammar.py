"""Keeps an answer to a JSON schema: tokens that would leave its grammar are forbidden.

The library llguidance says which tokens are allowed next. It is loaded by the first request that
needs it. JSON is written on one line, since a model that may write any white space can write
nothing else for ever.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from knn_logits_serve.refusals import Refusal
from knn_logits_serve.schemas import compiled

_FIELD = "response_format"
_MAX_REASON = 160


class Grammars:
    """The grammars of schemas, for a tokenizer and a model that can write `words` tokens."""

    def __init__(self, tokenizer: Any, ends: Collection[int], words: int) -> None:
        self._tokenizer, self._ends, self._words = tokenizer, sorted(ends), words
        self._vocabulary: Any = None

    def check(self) -> None:
        """Refuses every schema where none can be followed."""
        if find_spec("llguidance") is None:
            raise Refusal(
                "response_format needs llguidance on the server: pip install knn-logits[serve]",
                param=_FIELD,
            )
        if not self._ends:
            raise Refusal("this model has no token that ends an answer in JSON", param=_FIELD)

    def mask(self, schema: dict[str, Any]) -> GrammarMask:
        """Compiles a schema, or refuses one that cannot be followed."""
        from llguidance import LLMatcher

        grammar, reason = compiled(schema)
        if reason is not None:
            raise _refusal(reason)
        if self._vocabulary is None:
            self._vocabulary = self._opened()
        return GrammarMask(LLMatcher(self._vocabulary, grammar, log_level=0))

    def _opened(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            return LLTokenizer(backend.to_str(), n_vocab=self._words, eos_token=self._ends)
        return LLTokenizer(TokenizerWrapper(_Spelled(self._tokenizer, self._ends, self._words)))


def _refusal(reason: str) -> Refusal:
    line = " ".join(reason.partition("<state>")[0].split())[:_MAX_REASON]
    return Refusal(f"the schema cannot be followed ({line}): change it", param=_FIELD)


class _Spelled:
    """The vocabulary of a tokenizer of llama.cpp, in the form that llguidance reads."""

    def __init__(self, tokenizer: Any, ends: list[int], words: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = ends[0], tokenizer.bos_token_id
        self.special_token_ids = sorted({*ends, *tokenizer.all_special_ids})
        self.tokens = [tokenizer.bytes_of(token) for token in range(words)]

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


class GrammarMask(LogitsProcessor):
    """Forbids each token that would leave a grammar, in one row of text."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._prompt: int | None = None  # its tokens, which are all of the first call
        self._read: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._prompt is None:
            self._prompt = input_ids.shape[1]
        text = input_ids[0, self._prompt :].tolist()
        same = min(len(text), len(self._read))
        while text[:same] != self._read[:same]:
            same -= 1
        self._matcher.rollback(len(self._read) - same)
        self._matcher.consume_tokens(text[same:])
        self._read = text
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise _refusal(self._matcher.get_error())
        # A model may have more scores than the tokenizer has tokens.
        allowed = np.zeros(scores.shape[-1], bool)
        words = np.unpackbits(bits, bitorder="little")[: len(allowed)]
        allowed[: len(words)] = words
        forbidden = torch.from_numpy(~allowed).to(scores.device)
        return scores.masked_fill(forbidden, float("-inf"))
