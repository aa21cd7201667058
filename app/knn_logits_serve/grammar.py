"""Keeps an answer to a JSON schema: tokens that would leave its grammar are forbidden.

The library llguidance says which tokens are allowed next. It is loaded by the first request that
needs it. JSON is written on one line, since a model that may write any white space can write
nothing else for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from knn_logits_serve.refusals import Refusal

_ON_ONE_LINE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_FIELD = "response_format"
_MOST_CHARACTERS, _LONGEST_REASON = 200_000, 160


class Grammars:
    """The grammars of schemas, for a tokenizer and a model that can write `words` tokens."""

    def __init__(self, tokenizer: Any, ends: Collection[int], words: int) -> None:
        self._tokenizer, self._ends, self._words = tokenizer, sorted(ends), words
        self._lock = threading.Lock()
        self._vocabulary: Any = None

    def of(self, schema: dict[str, Any]) -> str:
        """Returns the grammar of a JSON schema, or refuses what the library does not know."""
        if find_spec("llguidance") is None:
            raise Refusal(
                "response_format needs llguidance on the server: pip install knn-logits[serve]",
                param=_FIELD,
            )
        if not self._ends:
            raise Refusal("this model has no token that ends an answer in JSON", param=_FIELD)
        from llguidance import LLMatcher

        try:
            grammar = str(LLMatcher.grammar_from_json_schema(schema, overrides=_ON_ONE_LINE))
            failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
        except ValueError as error:
            raise _refusal(str(error)) from error
        if failed or messages:
            raise _refusal(" ".join(messages))
        if len(grammar) > _MOST_CHARACTERS:
            raise Refusal("the schema is too large: make it smaller", param=_FIELD)
        # Some limits of the library are met by the first token only.
        matcher = self._matcher(grammar)
        matcher.compute_bitmask()
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return grammar

    def mask(self, grammar: str) -> GrammarMask:
        return GrammarMask(self._matcher(grammar))

    def _matcher(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._opened()
        return LLMatcher(self._vocabulary, grammar, log_level=0)

    def _opened(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            return LLTokenizer(backend.to_str(), n_vocab=self._words, eos_token=self._ends)
        return LLTokenizer(TokenizerWrapper(_Spelled(self._tokenizer, self._ends, self._words)))


def _refusal(reason: str) -> Refusal:
    line = " ".join(reason.partition("<state>")[0].split())[:_LONGEST_REASON]
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


class AfterPrompt(LogitsProcessor):
    """A processor of one row of text that knows where its prompt ends."""

    _prompt: int | None = None  # its tokens, which are all of the first call

    def written(self, input_ids: Tensor) -> Tensor:
        """Returns the tokens after the prompt; every call of the processor needs it."""
        if self._prompt is None:
            self._prompt = input_ids.shape[1]
        return input_ids[0, self._prompt :]


class GrammarMask(AfterPrompt):
    """Forbids each token that would leave a grammar, in one row of text."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._read: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        text = self.written(input_ids).tolist()
        same = min(len(text), len(self._read))
        while text[:same] != self._read[:same]:
            same -= 1
        self._matcher.rollback(len(self._read) - same)
        self._matcher.consume_tokens(text[same:])
        self._read = text
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = torch.from_numpy(np.unpackbits(bits, bitorder="little").astype(bool))
        if self._matcher.is_error():
            raise _refusal(self._matcher.get_error())
        forbidden = torch.ones(scores.shape[-1], dtype=torch.bool)
        width = min(len(forbidden), len(allowed))
        forbidden[:width] = ~allowed[:width]
        return scores.masked_fill(forbidden.to(scores.device), float("-inf"))
