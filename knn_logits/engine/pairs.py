"""Cuts pairs for an encoder-decoder model. Khandelwal et al. (2021), section 2."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.corpus.documents import Document
from knn_logits.engine.forward import padded
from knn_logits.engine.tokens import cut_texts
from knn_logits.errors import ConfigError, CorpusError, ModelError
from knn_logits.locks import cached_property

logger = logging.getLogger(__name__)

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_TEXTS_AT_ONCE = 1024
_OPTIONS = {"src_lang": "--source-lang", "tgt_lang": "--target-lang"}


def context_length(model: nn.Module) -> int | None:
    """The number of tokens that a model can read at once; None if it sets no limit."""
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    lengths = (getattr(text, name, None) for name in _LENGTHS)
    return next((value for value in lengths if isinstance(value, int) and value > 0), None)


class PairTokenizer:
    """Cuts sources and targets into tokens as an encoder-decoder model needs them."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        source_prefix: str = "",
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> None:
        if any(hasattr(tokenizer, name) for name in _OPTIONS):
            # Cutting a target changes the state of such a tokenizer.
            tokenizer = copy.deepcopy(tokenizer)
        _set_language(tokenizer, "src_lang", source_lang)
        _set_language(tokenizer, "tgt_lang", target_lang)
        self.tokenizer = tokenizer
        self.source_prefix = source_prefix
        self.source_lang: str | None = getattr(tokenizer, "src_lang", None)
        self.target_lang: str | None = getattr(tokenizer, "tgt_lang", None)
        self.source_limit = context_length(model)
        self._warned = False
        config: Any = model.config
        generation: Any = getattr(model, "generation_config", None)
        self._start = getattr(generation, "decoder_start_token_id", None)
        if self._start is None:
            self._start = getattr(config, "decoder_start_token_id", None)
        self._end = tokenizer.eos_token_id
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self._special = frozenset(tokenizer.all_special_ids)

    @cached_property
    def opening(self) -> list[int]:
        """The tokens that every text of the decoder begins with: a start token, a language."""
        (text,) = self.targets([""])
        # The start token of the decoder's text may also be its end token.
        return text[: text.index(self._end, 1) if self._end in text[1:] else 1]

    def sources(self, texts: Sequence[str]) -> list[Array]:
        ids, _ = cut_texts(self.tokenizer, [self.source_prefix + text for text in texts])
        sources = [np.array(self._cut(row), np.int32) for row in ids]
        if not all(map(len, sources)):
            raise CorpusError("a source is empty, so the encoder has no input; remove it")
        return sources

    def _cut(self, ids: list[int]) -> list[int]:
        limit = self.source_limit
        if limit is None or len(ids) <= limit:
            return ids
        if not self._warned:
            self._warned = True
            logger.warning(
                f"a source has {len(ids)} tokens, but the model's context is {limit}: it is "
                "truncated, and so are other long sources"
            )
        # The tokens that end every text stay: the end token, a language.
        ending = 0
        while ending < limit - 1 and ids[-1 - ending] in self._special:
            ending += 1
        return [*ids[: limit - ending], *ids[len(ids) - ending :]]

    def targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Cuts targets into the decoder's text: the start token, the target's tokens, the end."""
        # Without a name, some tokenizers fail, and others take the language of the sources.
        if self.target_lang is None and hasattr(self.tokenizer, "tgt_lang"):
            raise ConfigError(
                f"{type(self.tokenizer).__name__} supports several languages: set the target "
                "language with --target-lang (target_lang= in Python)"
            )
        labels, _ = cut_texts(self.tokenizer, texts, target=True)
        return [self._decoder_text(ids) for ids in labels]

    def _decoder_text(self, labels: Sequence[int]) -> list[int]:
        ids = list(labels)
        if len(ids) > 1 and ids[-2] == self._end != ids[-1]:
            # mBART's tokenizer puts the language after the end, but the text starts with it.
            return [ids[-1], *ids[:-1]]
        if self._start is None:
            raise ModelError(
                "the model's configuration does not define which token starts a target; set "
                "model.generation_config.decoder_start_token_id"
            )
        return [int(self._start), *ids]

    def inputs(self, texts: Sequence[str], device: torch.device) -> dict[str, Tensor]:
        """Makes the arguments of `generate()` for sources: `input_ids` and `attention_mask`."""
        inputs = padded(self.sources(texts), device, self._pad)
        return {"attention_mask": torch.ones_like(inputs["input_ids"]), **inputs}

    def texts(self, output: Tensor) -> list[str]:
        # Not every tokenizer treats a language as a special token.
        first = len(self.opening) if self.settings else 1
        texts = self.tokenizer.batch_decode(output[:, first:], skip_special_tokens=True)
        return [str(text).strip() for text in texts]

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `generate()` that make it write in the target language, if one is named."""
        if self.target_lang is None:
            return {}
        settings: dict[str, Any] = {"decoder_start_token_id": self.opening[0]}
        if len(self.opening) > 1:
            settings["forced_bos_token_id"] = self.opening[1]
        return settings


def tokenize_pairs(
    pairs: PairTokenizer, documents: Iterable[Document]
) -> Iterator[tuple[Document, list[int]]]:
    waiting = iter(documents)
    while group := list(islice(waiting, _TEXTS_AT_ONCE)):
        for document in group:
            if document.source is None:
                raise CorpusError(
                    f"the document {document.id} has no source: give an encoder-decoder model "
                    'pairs, which are rows with "source" and "target"'
                )
        yield from zip(group, pairs.targets([document.text for document in group]), strict=True)


def _set_language(tokenizer: Any, name: str, language: str | None) -> None:
    if language is None:
        return
    option = _OPTIONS[name]
    if not hasattr(tokenizer, name):
        raise ConfigError(
            f"{type(tokenizer).__name__} has no language codes: remove {option}, or put the "
            "language into --source-prefix"
        )
    # This is checked first, since some tokenizers accept any name and others fail in strange ways.
    languages = _languages(tokenizer)
    if language not in languages:
        raise ConfigError(
            f"the tokenizer has no language {language!r} for {option}; use one of "
            f"{', '.join(languages[:8]) or 'none'}{', ...' if len(languages) > 8 else ''}"
        )
    setattr(tokenizer, name, language)


def _languages(tokenizer: Any) -> list[str]:
    for name in ("lang_code_to_token", "lang_code_to_id"):
        languages = getattr(tokenizer, name, None)
        if languages:
            return list(languages)
    # The special tokens that have no other role.
    roles = [str(token) for token in tokenizer.special_tokens_map.values()]
    return [token for token in tokenizer.all_special_tokens if token not in roles]
