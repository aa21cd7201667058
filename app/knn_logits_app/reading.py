"""Turns texts into inputs of a causal or an encoder-decoder model, within limits.

A causal model continues a text, and an encoder-decoder model reads it as a source. The rest of the
page does not have to know the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from knn_logits import Datastore, LimitError, Limits, pair_tokenizer, text_ids
from knn_logits_app.requests import RequestError

# A text to explain may have this many times the tokens of a prompt.
WINDOWS = 4


@dataclass(frozen=True)
class Given:
    """The inputs of a model.

    Attributes:
        inputs: Arguments of the model or of its `generate()`.
        ids: int64 [1, tokens], the text so far. It is a prompt, the decoder's start token, or a
            text to explain.
        shown: The text that the page shows before the answer.
        begun: The beginning of the answer, if the request gave one.
    """

    inputs: dict[str, Any]
    ids: torch.Tensor
    shown: str = ""
    begun: str = ""


class Reading:
    """Turns texts into inputs of a model.

    Args:
        model: The model.
        tokenizer: The tokenizer of the model.
        stores: The datastores. The first one decides how sources are tokenized.
        context: The most tokens of a text that the model reads; None if that is not known.

    Attributes:
        sources: Whether the model reads sources, as an encoder-decoder model does.
        room: The most tokens of a prompt or a source; None if that is not known.
        settings: Further arguments of `generate()`.
        silent: Tokens that are not shown as text.
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
        """Removes the leading space of a piece that begins the target of a source.

        Args:
            piece: The piece of the answer.
            written: Whether the answer has a word before this piece.
        """
        return piece if written or not self.sources else piece.lstrip()

    def prompt(
        self, text: str, limits: Limits, new_tokens: int, begun: Sequence[int] = ()
    ) -> Given:
        """Makes the inputs for continuing a text, or for writing the target of a source.

        Args:
            text: The text or the source.
            limits: The limits of the request.
            new_tokens: The most tokens to write.
            begun: The tokens with which the answer begins.

        Raises:
            LimitError: when the text is longer than the limits allow, or than the model reads.
            RequestError: when the text has no token, or the vocabulary lacks a token of `begun`.
        """
        if not all(0 <= one < len(self._tokenizer) for one in begun):
            raise RequestError("The model has no such token: choose a token of this model.")
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
                f"{new_tokens:,} new tokens are asked for, but the model writes fewer than "
                f"{self._context:,}: ask for fewer"
            )
        start = torch.tensor([[*self._pairs.opening[:1], *begun]], device=self._model.device)
        if begun:
            inputs["decoder_input_ids"] = start
        return Given(inputs, start, begun=self._text(begun))

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def whole(self, text: str, source: str | None, limits: Limits) -> Given:
        """Makes the inputs for a text that exists already, and for its source if it has one.

        Raises:
            LimitError: when the text or the source is longer than the limits allow, or than the
                model reads.
            RequestError: when the text is too short, when the source of an encoder-decoder model
                is missing, or when another model is given one.
        """
        if self._pairs is None:
            if source is not None:
                raise RequestError("This model reads no source: leave the source out.")
            ids = self._ids(text)
            # The text is read in windows, so it may be longer than the model's context.
            most = WINDOWS * limits.prompt_tokens
            if ids.shape[1] > most:
                raise LimitError(
                    f"the text has {ids.shape[1]:,} tokens, but only {most:,} are allowed: "
                    "shorten it"
                )
            if ids.shape[1] < 2:
                raise RequestError("The text is too short to explain: write at least two words.")
            return Given({"input_ids": ids}, ids)
        if source is None:
            raise RequestError("This model reads a source: give the source as well.")
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
        ids = text_ids(self._tokenizer, text)
        if not ids:
            raise RequestError("The text has no token: write something first.")
        return torch.tensor([ids], device=self._model.device)

    def _source(self, text: str, limits: Limits) -> dict[str, Any]:
        """Makes the encoder's inputs. A source that is too long is refused, and never cut."""
        assert self._pairs is not None
        read = self._pairs.source_prefix + text
        tokens = len(text_ids(self._pairs.tokenizer, read))
        limits.check(prompt_tokens=tokens)
        if self.room is not None and tokens > self.room:
            raise LimitError(
                f"the source has {tokens:,} tokens, but the model reads only {self.room:,}: "
                "shorten it"
            )
        inputs: dict[str, Any] = self._pairs.inputs([text], self._model.device)
        return inputs


def end_tokens(model: Any) -> set[int]:
    """Returns the tokens that end a text of the model."""
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        return set()
    return set(found) if isinstance(found, (list, tuple)) else {int(found)}
