"""How a model takes a text: a causal one goes on from it, an encoder-decoder one answers it.

All that tells the two apart on the page is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from knn_logits import Datastore, LimitError, Limits, pair_tokenizer
from knn_logits_app.requests import RequestError

# A text to explain may have so many times the tokens of a prompt.
WINDOWS = 4


@dataclass(frozen=True)
class Given:
    """What a model is given.

    Attributes:
        inputs: Arguments of the model or of its `generate()`.
        ids: int64 [1, tokens], the text so far: a prompt, the token that starts a decoder's text,
            or a text to explain.
        shown: How the text on the page begins.
        begun: How the answer begins, where that was given.
    """

    inputs: dict[str, Any]
    ids: torch.Tensor
    shown: str = ""
    begun: str = ""


class Reading:
    """What a model reads, within limits.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        stores: Its datastores; the first says how sources are cut.
        context: Tokens of a text that it reads at most, None where it does not say.

    Attributes:
        sources: Whether it reads sources, and writes texts of their own.
        room: Tokens of a prompt or a source that it reads at most.
        settings: Arguments of `generate()`.
        silent: Tokens that are no word of a text.
    """

    def __init__(
        self, model: Any, tokenizer: Any, stores: Mapping[str, Datastore], context: int | None
    ) -> None:
        self._model, self._tokenizer, self._context = model, tokenizer, context
        self._pairs = pair_tokenizer(model, tokenizer, next(iter(stores.values())))
        self.sources = self._pairs is not None
        self.room = self._pairs.source_limit if self._pairs else context
        self.settings: dict[str, Any] = self._pairs.settings if self._pairs else {}
        self.silent = end_tokens(model)
        if self._pairs:
            self.silent |= set(tokenizer.all_special_ids)

    def begins(self, piece: str, written: bool) -> str:
        """A piece of an answer; one that begins a text of its own begins with no space.

        Args:
            piece: The piece.
            written: Whether a word stands before it.
        """
        return piece if written or not self.sources else piece.lstrip()

    def prompt(
        self, text: str, limits: Limits, new_tokens: int, begun: Sequence[int] = ()
    ) -> Given:
        """A text to write on from, or to.

        Args:
            text: The text.
            limits: What is allowed.
            new_tokens: Tokens to write.
            begun: Tokens with which the answer begins.

        Raises:
            LimitError: when it is longer than is allowed, or than the model reads.
            RequestError: when it holds no token, or the model has not those of the answer.
        """
        if not all(0 <= one < len(self._tokenizer) for one in begun):
            raise RequestError("This model has no such token.")
        given = self._causal if self._pairs is None else self._to_source
        return given(text, limits, new_tokens, list(begun))

    def _causal(self, text: str, limits: Limits, new_tokens: int, begun: list[int]) -> Given:
        ids = self._text_ids(text, limits, new_tokens + len(begun))
        ids = torch.cat([ids, ids.new_tensor([begun])], dim=-1)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return Given(inputs, ids, text, self._text(begun))

    def _to_source(self, text: str, limits: Limits, new_tokens: int, begun: list[int]) -> Given:
        assert self._pairs is not None
        inputs = self._source(text, limits)
        limits.check(new_tokens=new_tokens)
        whole = new_tokens + len(begun) + len(self._pairs.opening)
        if self._context is not None and whole > self._context:
            raise LimitError(
                f"{new_tokens:,} new tokens are asked for; the model writes fewer than "
                f"{self._context:,}: ask for less"
            )
        start = torch.tensor([[*self._pairs.opening[:1], *begun]], device=self._model.device)
        if begun:
            inputs["decoder_input_ids"] = start
        return Given(inputs, start, begun=self._text(begun))

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def whole(self, text: str, source: str | None, limits: Limits) -> Given:
        """A text that exists already, and what it was written to.

        Raises:
            LimitError: when one of them is longer than is allowed, or than the model reads.
            RequestError: when the text is too short, or the source missing or one too many.
        """
        if self._pairs is None:
            if source is not None:
                raise RequestError("This model reads no source: leave the source out.")
            ids = self._ids(text)
            # It is read in windows, so that it may be longer than what the model reads at once.
            most = WINDOWS * limits.prompt_tokens
            if ids.shape[1] > most:
                raise LimitError(
                    f"the text has {ids.shape[1]:,} tokens; {most:,} are allowed: shorten it"
                )
            if ids.shape[1] < 2:
                raise RequestError("The text is too short: one word has nothing before it.")
            return Given({"input_ids": ids}, ids)
        if source is None:
            raise RequestError("This model writes to a source: give the source as well.")
        inputs = self._source(source, limits)
        (target,) = self._pairs.targets([text])
        limits.check(prompt_tokens=len(target), context=self._context)
        ids = torch.tensor([target], device=self._model.device)
        return Given({**inputs, "decoder_input_ids": ids}, ids)

    def _text_ids(self, text: str, limits: Limits, new_tokens: int = 0) -> torch.Tensor:
        ids = self._ids(text)
        limits.check(prompt_tokens=ids.shape[1], new_tokens=new_tokens, context=self._context)
        return ids

    def _ids(self, text: str) -> torch.Tensor:
        ids = self._tokenizer(text, verbose=False)["input_ids"]
        if not ids:
            raise RequestError("The text holds no token: write something first.")
        return torch.tensor([ids], device=self._model.device)

    def _source(self, text: str, limits: Limits) -> dict[str, Any]:
        """What the encoder reads; a source that it would have to cut is refused."""
        assert self._pairs is not None
        read = self._pairs.source_prefix + text
        tokens = len(self._pairs.tokenizer(read, verbose=False)["input_ids"])
        limits.check(prompt_tokens=tokens)
        if self.room is not None and tokens > self.room:
            raise LimitError(
                f"the source has {tokens:,} tokens; the model reads {self.room:,}: shorten it"
            )
        inputs: dict[str, Any] = self._pairs.inputs([text], self._model.device)
        return inputs


def end_tokens(model: Any) -> set[int]:
    """Tokens that end a text."""
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        return set()
    return set(found) if isinstance(found, (list, tuple)) else {int(found)}
