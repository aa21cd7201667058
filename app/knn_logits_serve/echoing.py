"""Computes the tokens of a prompt with their probabilities, for answers that echo the prompt."""

from __future__ import annotations

from typing import Any

import torch

from knn_logits import LimitError, Memory, Pieces, explain
from knn_logits_serve.decoding import finite
from knn_logits_serve.parts import Token
from knn_logits_serve.refusals import Refusal
from knn_logits_serve.request import GenerationRequest, Prompt
from knn_logits_serve.served import Served


def echo_of(
    served: Served, request: GenerationRequest, prompt: Prompt, memory: Memory | None
) -> tuple[Token, ...]:
    """Returns the tokens of a prompt, with their probabilities if the request wants them.

    The first token has no probability, since no token precedes it.
    """
    ids, tokenizer = prompt.ids, served.tokenizer
    pieces = Pieces(tokenizer, [])
    texts = [pieces.add(token) for token in ids]
    number = request.logprobs
    if number is None or len(ids) < 2:
        return tuple(Token(text) for text in texts)
    if memory is None:
        with torch.no_grad():
            logits = served.model(prompt.inputs["input_ids"]).logits[0, :-1].float()
        rows = torch.log_softmax(logits, dim=-1)
        tokens = [Token(texts[0])]
        for text, token, row in zip(texts[1:], ids[1:], rows, strict=True):
            best = row.topk(min(number, len(row)))
            pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            tokens.append(scored(tokenizer, text, finite(float(row[token])), pairs))
        return tuple(tokens)
    config = memory.config
    settings = config.values("scoring")
    if memory.gate is not None:
        settings["lmbda"] = memory.gate
    trace = explain(
        served.model,
        tokenizer,
        memory,
        prompt.text,
        max_neighbors=0,
        candidates=number,
        **settings,
    )[0]
    if [traced.token_id for traced in trace.tokens] != ids[1:]:
        raise Refusal(
            "the tokenizer gives other tokens for the text of this prompt, so their probabilities "
            "with kNN are not known: give the prompt as text",
            param="prompt",
        )
    tokens = [Token(texts[0])]
    for text, traced in zip(texts[1:], trace.tokens, strict=True):
        if traced.p is None:
            raise LimitError("the prompt is too long to compute its probabilities: shorten it")
        best_of = sorted(traced.candidates, key=lambda candidate: -candidate.p)[:number]
        likeliest = tuple((candidate.token, _log(candidate.p)) for candidate in best_of)
        tokens.append(Token(text, _log(traced.p), likeliest))
    return tuple(tokens)


def _log(p: float) -> float:
    return finite(float(torch.tensor(p, dtype=torch.float64).log()))


def scored(tokenizer: Any, text: str, logprob: float, likeliest: list[tuple[int, float]]) -> Token:
    """Makes a token with its log-probability and the texts of the likeliest tokens."""
    names = [
        str(tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token, _ in likeliest
    ]
    pairs = zip(names, (value for _, value in likeliest), strict=True)
    return Token(text, logprob, tuple(pairs))
