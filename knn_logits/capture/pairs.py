"""How an encoder-decoder model reads a pair: the source in its encoder, the target in its decoder.

This is all that tells such a model from a causal one here. A target becomes the decoder's text,
from the token that starts it to the one that ends it; what follows on from it (windows, entries,
keys, pointers) is that of any text. Khandelwal et al. (2021), "Nearest Neighbor Machine
Translation", section 2.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.capture.forward import padded
from knn_logits.errors import ConfigError, ModelError
from knn_logits.neighbors import Array

logger = logging.getLogger(__name__)

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_SOURCE_LENGTHS = ("max_encoder_position_embeddings", *_LENGTHS)
_TEXTS_AT_ONCE = 1024


def context_length(model: nn.Module) -> int | None:
    """Tokens a model can read at once, None when its configuration sets no limit.

    Of an encoder-decoder model those of its decoder.
    """
    return _length(model, _LENGTHS)


def _length(model: nn.Module, names: Sequence[str]) -> int | None:
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in names:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


class PairTokenizer:
    """Cuts sources and targets as an encoder-decoder model wants them.

    Args:
        model: The model.
        tokenizer: Its tokenizer; it is not changed.
        source_prefix: Stands before every source, such as T5's "translate English to German: ".
        source_lang: Language of the sources, by the tokenizer's name for it ("en_XX", "eng_Latn",
            "en"); None where the tokenizer knows of none, or to keep its own.
        target_lang: Language of the targets.

    Attributes:
        opening: What the decoder's text begins with, whatever the target: a start, a language.
        source_limit: Tokens that the encoder can read, None when the model sets no limit.

    Raises:
        ConfigError: when the tokenizer does not know the language.
        ModelError: when the model names no token that starts the decoder's text.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        source_prefix: str = "",
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> None:
        if source_lang is not None or target_lang is not None:
            tokenizer = copy.deepcopy(tokenizer)
            _set_language(tokenizer, "src_lang", source_lang)
            _set_language(tokenizer, "tgt_lang", target_lang)
        self.tokenizer = tokenizer
        self.source_prefix = source_prefix
        self.source_lang = source_lang
        self.target_lang = target_lang
        self.source_limit = _length(model, _SOURCE_LENGTHS)
        self._warned = False
        config: Any = model.config
        own: Any = getattr(model, "generation_config", None)
        self._start = getattr(own, "decoder_start_token_id", None)
        if self._start is None:
            self._start = getattr(config, "decoder_start_token_id", None)
        self._end = tokenizer.eos_token_id
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        text = self._decoder_text(tokenizer(text_target=[""], verbose=False)["input_ids"][0])
        # What starts the decoder's text may also be what ends it.
        length = text.index(self._end, 1) if self._end in text[1:] else 1
        self.opening: list[int] = text[:length]

    def sources(self, texts: Sequence[str]) -> list[Array]:
        """What the encoder reads.

        Args:
            texts: The sources, without prefix.

        Returns:
            int32 [tokens] each; cut where the encoder can read no further.
        """
        found: list[Array] = []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            part = [self.source_prefix + text for text in texts[first : first + _TEXTS_AT_ONCE]]
            found += [np.array(self._cut(ids), np.int32) for ids in self._ids(part)]
        return found

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, return_attention_mask=False, verbose=False)[
            "input_ids"
        ]
        return ids

    def _cut(self, ids: list[int]) -> list[int]:
        limit = self.source_limit
        if limit is None or len(ids) <= limit:
            return ids
        if not self._warned:
            self._warned = True
            logger.warning(
                "a source has %d tokens, the model reads %d: what is beyond is left out, here and "
                "in further sources",
                len(ids),
                limit,
            )
        # The tokens that end a text stay.
        kept = 1 if self._end is not None and ids[-1] == self._end else 0
        return [*ids[: limit - kept], *ids[len(ids) - kept :]]

    def targets(self, texts: Sequence[str]) -> list[list[int]]:
        """The decoder's text for some targets: the token that starts it, theirs, its end.

        Args:
            texts: The targets.
        """
        found: list[list[int]] = []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            labels = self.tokenizer(
                text_target=list(texts[first : first + _TEXTS_AT_ONCE]), verbose=False
            )["input_ids"]
            found += [self._decoder_text(ids) for ids in labels]
        return found

    def _decoder_text(self, labels: Sequence[int]) -> list[int]:
        ids = list(labels)
        if len(ids) > 1 and ids[-2] == self._end != ids[-1]:
            # A language after the end, as mBART's tokenizer puts it, is what starts the text.
            return [ids[-1], *ids[:-1]]
        if self._start is None:
            raise ModelError(
                "the model's configuration has no decoder_start_token_id, so where a target begins "
                "is not known; set model.generation_config.decoder_start_token_id"
            )
        return [int(self._start), *ids]

    def inputs(self, texts: Sequence[str], device: torch.device) -> dict[str, Tensor]:
        """Arguments of `generate()` for some sources: `input_ids` and `attention_mask`.

        Args:
            texts: The sources, without prefix.
            device: The model's.
        """
        found = padded(self.sources(texts), device, self._pad)
        return {"attention_mask": torch.ones_like(found["input_ids"]), **found}

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `generate()` that make it write in the target language, if one is named."""
        if self.target_lang is None:
            return {}
        found: dict[str, Any] = {"decoder_start_token_id": self.opening[0]}
        if len(self.opening) > 1:
            found["forced_bos_token_id"] = self.opening[1]
        return found


def _set_language(tokenizer: Any, name: str, language: str | None) -> None:
    if language is None:
        return
    option = {"src_lang": "--source-lang", "tgt_lang": "--target-lang"}[name]
    if not hasattr(tokenizer, name):
        raise ConfigError(
            f"{type(tokenizer).__name__} knows no languages: leave {option} out, or say it to the "
            "model with --source-prefix"
        )
    # Asked for first, since some tokenizers take any name and others fail in ways of their own.
    known = getattr(tokenizer, "lang_code_to_token", None) or {}
    unknown = tokenizer.convert_tokens_to_ids(language) in (None, tokenizer.unk_token_id)
    if language not in known and unknown:
        special = ", ".join([*known, *tokenizer.all_special_tokens][:8])
        raise ConfigError(f"{option} {language!r} is no language of the tokenizer ({special}, ...)")
    setattr(tokenizer, name, language)
