"""Finds words that mean nearly the same: those whose embeddings in the model are alike.

The first principal components, which tell how common a word is, are left out: Mu and Viswanath
(2018), "All-but-the-Top: Simple and Effective Postprocessing for Word Representations".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from knn_logits.ask.languages import folded, stem
from knn_logits.locks import cached_property

# The words of passages that are like a word of a question, each with how much: at most 1.
Alike: TypeAlias = Mapping[str, Mapping[str, float]]
# A word is like so many others at most. Their cosines are so many times as large as the usual one:
# embeddings of few numbers, or of a model that learned little, have no such pair.
_MOST, _UNUSUAL = 8, 6.0
# How many principal components are left out, and the rounds of subspace iteration to find them.
_COMPONENTS, _ROUNDS = 4, 12
# What tokenizers put before a token that begins a word.
_BEGINS_WORD = ("\u0120", "\u2581")


class Meanings:
    """Compares the words of questions with those of passages by the model's input embeddings.

    A word takes part if its stem is that of a token: of others only the pieces have embeddings.
    """

    def __init__(self, model: Any, tokenizer: Any, language: str, words: Sequence[str]) -> None:
        self._model, self._tokenizer, self._language = model, tokenizer, language
        self._listed = words

    @cached_property
    def _tokens(self) -> dict[str, int]:
        """The token of each stem: the first in the vocabulary, which is mostly the commonest."""
        tokens: dict[str, int] = {}
        for text, token in sorted(self._tokenizer.get_vocab().items(), key=lambda pair: pair[1]):
            word = text[1:]
            if text.startswith(_BEGINS_WORD) and word.isascii() and word.isalpha():
                tokens.setdefault(stem(folded(word), self._language), token)
        return tokens

    @cached_property
    def _words(self) -> list[str]:
        return [word for word in self._listed if word in self._tokens]

    def _embeddings(self, words: Sequence[str]) -> Tensor:
        table: Tensor = self._model.get_input_embeddings().weight
        rows = torch.tensor([self._tokens[word] for word in words], device=table.device)
        return table[rows].float()

    @cached_property
    def _basis(self) -> tuple[Tensor, Tensor]:
        """The mean of the passages' words, and their first principal components."""
        vectors = self._embeddings(self._words)
        mean = vectors.mean(dim=0)
        vectors -= mean
        components = vectors[:_COMPONENTS].T
        for _ in range(_ROUNDS):
            components, _ = torch.linalg.qr(vectors.T @ (vectors @ components))
        return mean, components

    def _directions(self, words: Sequence[str]) -> Tensor:
        mean, components = self._basis
        vectors = self._embeddings(words) - mean
        return torch.nn.functional.normalize(vectors - vectors @ components @ components.T, dim=-1)

    @cached_property
    def _passage_directions(self) -> Tensor:
        return self._directions(self._words)

    @torch.no_grad()
    def alike(self, words: Sequence[str]) -> Alike:
        """Finds the words of passages that are like each of some words. All are stems."""
        table = getattr(self._model.get_input_embeddings(), "weight", None)
        # llama.cpp keeps the embeddings to itself.
        if table is None or table.device.type == "meta":
            return {}
        words = [word for word in dict.fromkeys(words) if word in self._tokens]
        if not words or len(self._words) <= _COMPONENTS:
            return {}
        cosines = self._directions(words) @ self._passage_directions.T
        limits = _UNUSUAL * cosines.square().median(dim=-1).values.sqrt() / 0.6745
        best = cosines.topk(min(_MOST + 1, len(self._words)))
        return {
            word: {
                self._words[row]: cosine
                for row, cosine in zip(rows, values, strict=True)
                if cosine >= limit and self._words[row] != word
            }
            for word, rows, values, limit in zip(
                words, best.indices.tolist(), best.values.tolist(), limits.tolist(), strict=True
            )
        }
