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
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.capture.forward import padded
from knn_logits.errors import ConfigError, CorpusError, ModelError

logger = logging.getLogger(__name__)

_LENGTHS = (
    "max_position_embeddings",
    "max_decoder_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
)
_SOURCE_LENGTHS = ("max_encoder_position_embeddings", *_LENGTHS)
_TEXTS_AT_ONCE = 1024
_OPTIONS = {"src_lang": "--source-lang", "tgt_lang": "--target-lang"}


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
        source_lang: The language given, or else the tokenizer's own.
        target_lang: So here.
        source_limit: Tokens that the encoder can read, None when the model sets no limit.

    Raises:
        ConfigError: when the tokenizer does not know the language.
        ModelError: when the model's encoder reads no text.
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
        reads = getattr(model, "main_input_name", "input_ids")
        if reads != "input_ids":
            raise ModelError(
                f"{type(model).__name__} reads {reads}, not text: give an encoder-decoder model "
                "whose encoder reads tokens"
            )
        if any(hasattr(tokenizer, name) for name in _OPTIONS):
            # Cutting a target alone changes such a tokenizer.
            tokenizer = copy.deepcopy(tokenizer)
        _set_language(tokenizer, "src_lang", source_lang)
        _set_language(tokenizer, "tgt_lang", target_lang)
        self.tokenizer = tokenizer
        self.source_prefix = source_prefix
        self.source_lang: str | None = getattr(tokenizer, "src_lang", None)
        self.target_lang: str | None = getattr(tokenizer, "tgt_lang", None)
        self.source_limit = _length(model, _SOURCE_LENGTHS)
        self._warned = False
        config: Any = model.config
        own: Any = getattr(model, "generation_config", None)
        self._start = getattr(own, "decoder_start_token_id", None)
        if self._start is None:
            self._start = getattr(config, "decoder_start_token_id", None)
        self._end = tokenizer.eos_token_id
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self._special = frozenset(tokenizer.all_special_ids)

    @cached_property
    def opening(self) -> list[int]:
        """What the decoder's text begins with, whatever the target: a start, a language.

        Raises:
            ConfigError: when the tokenizer writes several languages, and none is named.
            ModelError: when the model names no token that starts the decoder's text.
        """
        (text,) = self.targets([""])
        # What starts the decoder's text may also be what ends it.
        return text[: text.index(self._end, 1) if self._end in text[1:] else 1]

    def sources(self, texts: Sequence[str]) -> list[Array]:
        """What the encoder reads.

        Args:
            texts: The sources, without prefix.

        Returns:
            int32 [tokens] each; cut where the encoder can read no further.

        Raises:
            CorpusError: when a source has no token.
        """
        found: list[Array] = []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            part = [self.source_prefix + text for text in texts[first : first + _TEXTS_AT_ONCE]]
            found += [np.array(self._cut(ids), np.int32) for ids in self._ids(part)]
        if not all(map(len, found)):
            raise CorpusError("a source is empty, so the encoder has nothing to read; leave it out")
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
        # What ends a text stays: its end, a language.
        kept = 0
        while kept < limit - 1 and ids[-1 - kept] in self._special:
            kept += 1
        return [*ids[: limit - kept], *ids[len(ids) - kept :]]

    def targets(self, texts: Sequence[str]) -> list[list[int]]:
        """The decoder's text for some targets: the token that starts it, theirs, its end.

        Args:
            texts: The targets.

        Raises:
            ConfigError: when the tokenizer writes several languages, and none is named.
            ModelError: when the model names no token that starts the decoder's text.
        """
        found: list[list[int]] = []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            labels = self._labels(list(texts[first : first + _TEXTS_AT_ONCE]))
            found += [self._decoder_text(ids) for ids in labels]
        return found

    def _labels(self, texts: list[str]) -> list[list[int]]:
        try:
            ids: list[list[int]] = self.tokenizer(text_target=texts, verbose=False)["input_ids"]
            # Some take the sources' language where none is named.
            unnamed = self.target_lang is None and getattr(self.tokenizer, "tgt_lang", None)
        except (KeyError, TypeError):
            if self.target_lang is not None or not hasattr(self.tokenizer, "tgt_lang"):
                raise
            unnamed = True
        if unnamed:
            raise ConfigError(
                f"{type(self.tokenizer).__name__} knows several languages: name the one to write "
                "with --target-lang (target_lang= in Python)"
            )
        return ids

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

    def texts(self, output: Tensor) -> list[str]:
        """What `generate()` wrote.

        Args:
            output: int64 [rows, tokens], as it returned them, with `settings` among its arguments.

        Returns:
            Texts without what every text of the decoder begins and ends with.
        """
        # A language is no special token to every tokenizer.
        first = len(self.opening) if self.settings else 1
        found = self.tokenizer.batch_decode(output[:, first:], skip_special_tokens=True)
        return [str(text).strip() for text in found]

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
    option = _OPTIONS[name]
    if not hasattr(tokenizer, name):
        raise ConfigError(
            f"{type(tokenizer).__name__} knows no languages: leave {option} out, or say it to the "
            "model with --source-prefix"
        )
    # Asked for first, since some tokenizers take any name and others fail in ways of their own.
    known = _languages(tokenizer)
    if language not in known:
        raise ConfigError(
            f"{option} {language!r} is no language of the tokenizer, which knows "
            f"{', '.join(known[:8]) or 'none'}{', ...' if len(known) > 8 else ''}"
        )
    setattr(tokenizer, name, language)


def _languages(tokenizer: Any) -> list[str]:
    for name in ("lang_code_to_token", "lang_code_to_id"):
        known = getattr(tokenizer, name, None)
        if known:
            return list(known)
    # Of the special tokens those that have no other part to play.
    others = [str(token) for token in tokenizer.special_tokens_map.values()]
    return [token for token in tokenizer.all_special_tokens if token not in others]
