"""The inputs of `generate()`: tokens within limits, samplers, a streamer, an end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from knn_logits import text_ids
from knn_logits.errors import LimitError
from knn_logits.hosting import Limits, context_length, language_of, sentences_of
from knn_logits_app.requests import RequestError

# A text to explain may have this many times the tokens of a prompt.
WINDOWS = 4
_LIST_NUMBER = re.compile(r"(\n[ \t]*\d+)\.")


def end_tokens(model: Any) -> set[int]:
    """The tokens that end a text."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    return set(ends if isinstance(ends, (list, tuple)) else [ends]) - {None}


class Reader:
    """Turns texts into tokens, within limits."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self.silent = end_tokens(model)

    def prompt(self, text: str, limits: Limits, new_tokens: int) -> Tensor:
        """Returns the tokens of a text that is continued, int64 [1, tokens]."""
        ids = self._ids(text)
        context = context_length(self._model)
        limits.check(prompt_tokens=ids.shape[1], new_tokens=new_tokens, context=context)
        return ids

    def check_text(self, text: str, limits: Limits) -> None:
        """Checks a text that exists already. It is read in windows, so it may be long."""
        tokens, most = self.tokens_of(text), WINDOWS * limits.prompt_tokens
        if tokens > most:
            raise LimitError(
                f"the text has {tokens:,} tokens, but the limit is {most:,}: shorten it"
            )

    def tokens_of(self, text: str) -> int:
        """Counts the tokens of a text. Without a second one nothing in it is predicted."""
        tokens = self._ids(text).shape[1]
        if tokens < 2:
            raise RequestError("The text is too short: enter at least two words.")
        return tokens

    def _ids(self, text: str) -> Tensor:
        ids = text_ids(self._tokenizer, text)
        if not ids:
            raise RequestError("The text contains no tokens: enter some text first.")
        return torch.tensor([ids], device=self._model.device)


class PositionSampler(LogitsProcessor):
    """Makes greedy search sample from the distribution. It has to be the last processor.

    `generate()` samples with the global random state of PyTorch, which all requests share. Here
    Gumbel noise is added to the log-probabilities, and the token with the largest sum is exactly a
    sample of the softmax. The noise depends only on the seed and the position. So the text stays
    the same when a position is computed several times, as happens with drafted tokens.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = torch.Generator()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        place = f"{self._seed} {input_ids.shape[1]}".encode()
        self._random.manual_seed(int.from_bytes(blake2b(place, digest_size=4).digest(), "big"))
        noise = torch.rand(scores.shape[-1], generator=self._random).clamp_(1e-20, 1 - 1e-7)
        gumbel = -torch.log(-torch.log(noise))
        return torch.log_softmax(scores.float(), dim=-1) + gumbel.to(scores.device)


def samplers(
    seed: int, temperature: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> list[LogitsProcessor]:
    """Returns the processors that sample a token, in their order."""
    warpers: list[LogitsProcessor] = []
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(temperature))
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    return [*warpers, PositionSampler(seed)]


class TokenStream(BaseStreamer):
    """Calls a function with the id of each new token, in the thread that writes."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token = on_token
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        for token in value.reshape(-1).tolist():
            self._on_token(token)

    def end(self) -> None:
        """Does nothing, since every token was passed on already."""


class SentenceEnd(LogitsProcessor):
    """Ends a text where the likeliest token begins its second sentence.

    It follows all other processors, also a sampler. The point of "9.4" ends no sentence, and a
    number after a blank begins none, since it may follow an abbreviation. Nor does the point of a
    list's number end one.

    Args:
        tokenizer: The tokenizer of the model.
        prompt: Number of tokens of the prompt, which are no part of the sentence.
        ends: The tokens that end a text.
    """

    def __init__(self, tokenizer: Any, prompt: int, ends: Iterable[int]) -> None:
        self._tokenizer, self._prompt, self._ends = tokenizer, prompt, sorted(ends)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        ids = [*input_ids[0, self._prompt :].tolist(), int(scores[0].argmax())]
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        before = self._tokenizer.decode(input_ids[0, self._prompt - 1 : self._prompt])
        text = _LIST_NUMBER.sub(r"\1)", "\n" * before.endswith("\n") + text)
        over = any(
            any(map(str.isalnum, one)) and not following[:1].isdigit()
            for one, following in pairwise(sentences_of(text, language_of(text)))
        )
        if not over:
            return scores
        ended = torch.full_like(scores, -torch.inf)
        ended[:, self._ends] = 0.0
        return ended
