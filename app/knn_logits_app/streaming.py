"""Follows `generate()` while it writes, token by token, and ends it after a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria
from transformers.generation.streamers import BaseStreamer


class TokenStream(BaseStreamer):
    """Calls a function with each new token, in the thread that writes.

    Args:
        on_token: A function that takes the token's id.
    """

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


class SentenceEnd(StoppingCriteria):
    """Ends a text with its first sentence.

    Args:
        tokenizer: The tokenizer that decodes the text.
        prompt: Number of tokens of the prompt.
    """

    def __init__(self, tokenizer: Any, prompt: int) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt

    def __call__(self, input_ids: Tensor, _: Any, **__: Any) -> Tensor:
        text = self._tokenizer.decode(input_ids[0, self._prompt :][-8:])
        over = len(text.strip()) > 1 and text.rstrip(" \n\"')").endswith((".", "!", "?"))
        return torch.full((input_ids.shape[0],), over, device=input_ids.device)
