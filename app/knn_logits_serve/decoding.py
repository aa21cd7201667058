"""The processors that choose and record tokens, and the tokens of an echoed prompt."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from knn_logits import Memory, explain
from knn_logits.errors import LimitError
from knn_logits.hosting import Pieces
from knn_logits_app.decoding import samplers
from knn_logits_serve.answers import Token
from knn_logits_serve.bodies import GenerationRequest, Prompt, Sampling
from knn_logits_serve.served import Served

# The log-probability of an impossible token, since JSON has no infinity.
IMPOSSIBLE = -9999.0


class Overheard(LogitsProcessor):
    """Keeps the distributions of the latest positions, until `at` names the tokens chosen there."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._rows[input_ids.shape[1]] = scores
        return scores

    def at(self, position: int, token: int, number: int) -> tuple[float, list[tuple[int, float]]]:
        """Returns the log-probability of a token, and the likeliest tokens in its place."""
        row = self._rows[position][0]
        for step in [step for step in self._rows if step <= position]:
            del self._rows[step]
        return _likeliest(row, token, number)


def _likeliest(scores: Tensor, token: int, number: int) -> tuple[float, list[tuple[int, float]]]:
    row = torch.log_softmax(scores.float(), dim=-1).clamp(min=IMPOSSIBLE)
    best = row.topk(min(number, len(row)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return float(row[token]), list(pairs)


def processors(sampling: Sampling, choice: int, first: list[Any], mask: Any = None) -> list[Any]:
    """Returns the processors of one text, in their order; `first` mixes or reads probabilities.

    `mask` forbids tokens before these, so that the memory brings none back.
    """
    chain: list[Any] = list(first) if mask is None else [mask, *first]
    if sampling.temperature > 0:
        temperature, seed = max(sampling.temperature, 1e-4), sampling.seed + choice
        chain += samplers(seed, temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    return chain


def echo_of(
    served: Served, request: GenerationRequest, prompt: Prompt, memory: Memory | None
) -> tuple[Token, ...]:
    """Returns a prompt's tokens, all but the first with the probabilities asked for."""
    ids, tokenizer = prompt.ids, served.tokenizer
    pieces = Pieces(tokenizer, [])
    texts = [pieces.add(token) for token in ids]
    number = request.logprobs
    if number is None or len(ids) < 2:
        return tuple(Token(text) for text in texts)
    if memory is None:
        with torch.no_grad():
            rows = served.model(prompt.inputs["input_ids"]).logits[0, :-1]
        tokens = [Token(texts[0])]
        for text, token, row in zip(texts[1:], ids[1:], rows, strict=True):
            tokens.append(scored(tokenizer, text, *_likeliest(row, token, number)))
        return tuple(tokens)
    trace = explain(served.model, tokenizer, memory, ids, max_neighbors=0, candidates=number)[0]
    tokens = [Token(texts[0])]
    for text, traced in zip(texts[1:], trace.tokens, strict=True):
        if traced.p is None:
            raise LimitError("the prompt is too long to compute its probabilities: shorten it")
        best_of = sorted(traced.candidates, key=lambda candidate: -candidate.p)[:number]
        likeliest = tuple((candidate.token, _log(candidate.p)) for candidate in best_of)
        tokens.append(Token(text, _log(traced.p), likeliest))
    return tuple(tokens)


def _log(p: float) -> float:
    return math.log(p) if p > 0 else IMPOSSIBLE


def scored(tokenizer: Any, text: str, logprob: float, likeliest: list[tuple[int, float]]) -> Token:
    """Makes a token with its log-probability and the texts of the likeliest tokens."""
    decode = tokenizer.decode
    pairs = [
        (str(decode([token], clean_up_tokenization_spaces=False)), p) for token, p in likeliest
    ]
    return Token(text, logprob, tuple(pairs))
