"""Checks the settings of a build before any work is done for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from knn_logits.building.steps import KeyPlan
from knn_logits.engine.compatibility import tokenizer_record, vocabulary_size
from knn_logits.engine.forward import input_device
from knn_logits.engine.keys import default_batch_tokens
from knn_logits.engine.location import find_key, is_encoder_decoder
from knn_logits.engine.pairs import PairTokenizer, context_length
from knn_logits.engine.windows import resolve
from knn_logits.errors import ConfigError
from knn_logits.settings.config import (
    IndexConfig,
    KNNConfig,
    WindowConfig,
    check_threads,
    index_config,
    whole_number,
)
from knn_logits.store.records import OnDemandRecord, WindowRecord


@dataclass(frozen=True)
class BuildPlan:
    """A build's settings, all of them within their ranges.

    Attributes:
        keys: Everything that determines the keys.
        index: What kind of index to build.
        settings: The datastore's settings, which hold where a user gives none. A setting that the
            build was not given has the default of `KNNConfig`.
        on_demand: How keys are computed on demand; None where they are stored.
    """

    keys: KeyPlan
    index: IndexConfig
    settings: KNNConfig
    on_demand: OnDemandRecord | None = None

    def as_text(self, model: nn.Module, tokenizer: Any) -> dict[str, str]:
        """Returns the plan as text, to compare it with the plan of an unfinished job."""
        plan = self.keys.as_text(model, tokenizer)
        if self.on_demand is not None:
            plan["keys"] = str(self.on_demand)
        return plan


def planned(
    model: nn.Module,
    tokenizer: Any,
    *,
    key: str,
    window: WindowConfig | None,
    concatenate: bool,
    source_prefix: str,
    source_lang: str | None,
    target_lang: str | None,
    index: IndexConfig | str | None,
    k: int | None,
    lmbda: float | None,
    temperature: float | None,
    suffix_weight: float | None = None,
    keys_dtype: str,
    batch_tokens: int | None,
    threads: int | None,
    store_keys: bool = True,
) -> BuildPlan:
    """Checks the arguments of `build_datastore`, which documents them.

    Raises:
        ConfigError: when a setting is out of its range, or belongs to another kind of model.
        ModelError: when the model has no place for the key.
    """
    if keys_dtype not in ("float16", "float32"):
        raise ConfigError(f"keys can be stored in float16 or float32, not in {keys_dtype!r}")
    if batch_tokens is not None:
        batch_tokens = whole_number("batch_tokens", batch_tokens, 1)
    check_threads(threads)
    location = find_key(model, key)
    _check_vocabulary(model, tokenizer)
    # This refuses what is not a tokenizer, before any text is read.
    tokenizer_record(tokenizer)
    pairs: PairTokenizer | None = None
    if is_encoder_decoder(model):
        if concatenate:
            raise ConfigError(
                "pairs of source and target cannot be joined into one stream: leave out "
                "--concatenate"
            )
        pairs = PairTokenizer(
            model,
            tokenizer,
            source_prefix=source_prefix,
            source_lang=source_lang,
            target_lang=target_lang,
        )
    elif source_prefix or source_lang or target_lang:
        raise ConfigError(
            "a causal model does not read sources: leave out --source-prefix, --source-lang and "
            "--target-lang"
        )
    settings = KNNConfig().with_given(
        k=k, lmbda=lmbda, temperature=temperature, suffix_weight=suffix_weight
    )
    window_size, stride = resolve(window or WindowConfig(), context_length(model))
    keys = KeyPlan(
        location=location,
        windows=WindowRecord(window=window_size, stride=stride, concatenate=concatenate),
        dtype=keys_dtype,
        batch_tokens=batch_tokens or default_batch_tokens(input_device(model)),
        pairs=pairs,
    )
    index = index_config(index)
    if store_keys:
        return BuildPlan(keys, index, settings)
    _check_on_demand(index, keys)
    return BuildPlan(keys, index, settings, _on_demand_record(window_size))


def _check_vocabulary(model: nn.Module, tokenizer: Any) -> None:
    """Refuses a tokenizer with more words than the model, which was trained with another one."""
    # Tokens that a user added, such as one for padding, do not count.
    words, size = tokenizer_record(tokenizer).vocabulary, vocabulary_size(model)
    if words > size:
        raise ConfigError(
            f"the tokenizer has {words:,} tokens, but the model has only {size:,}, so it is "
            "not the model's: load the tokenizer that belongs to the model"
        )


def _check_on_demand(index: IndexConfig, keys: KeyPlan) -> None:
    """Refuses what a datastore without keys cannot have.

    Raises:
        ConfigError: when it is asked for.
    """
    if keys.pairs is not None:
        raise ConfigError(
            "keys on demand need a causal model, since passages are found by the text that is "
            "being written: leave out --no-keys"
        )
    named = index.factory not in ("auto", "exact")
    if named or index.nprobe is not None or index.native or index.measures:
        raise ConfigError(
            "without keys there is no index to build: leave out --index, --nprobe, --budget, "
            "--target-recall and --native-index, or --no-keys"
        )


def _on_demand_record(window: int) -> OnDemandRecord:
    """Returns how keys are made on demand for a model that reads windows of so many tokens."""
    wanted = OnDemandRecord()
    passage = max(1, min(wanted.passage, window // 2))
    return wanted.model_copy(
        update={"passage": passage, "context": min(wanted.context, window - passage)}
    )
