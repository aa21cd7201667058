"""The settings of a build: their types, and their checks before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from knn_logits._version import __version__
from knn_logits.engine.compatibility import model_record, pair_tokenizer, tokenizer_record
from knn_logits.engine.location import DEFAULT_KEY, KeyLocation, find_key
from knn_logits.engine.pairs import PairTokenizer, context_length
from knn_logits.engine.windows import resolve, tokens_of_pass
from knn_logits.errors import ConfigError
from knn_logits.index.kinds import Kind
from knn_logits.settings.config import (
    IndexConfig,
    KNNConfig,
    StoredSettings,
    WindowConfig,
    index_config,
)
from knn_logits.settings.registry import stored_settings
from knn_logits.store.manifest import Manifest
from knn_logits.store.records import KeyRecord, OnDemandRecord, PairsRecord, WindowRecord


class PlanSettings(StoredSettings, total=False):
    """The settings of `build_datastore` that change the datastore; it documents them."""

    key: str
    window: WindowConfig | None
    concatenate: bool
    source_prefix: str
    source_lang: str | None
    target_lang: str | None
    index: IndexConfig | str | None
    calibrate: bool
    store_keys: bool
    keys_dtype: str
    batch_tokens: int | None


class BuildSettings(PlanSettings, total=False):
    """The keyword arguments of `build_datastore`, which documents them."""

    encoder: str | None
    overwrite: bool
    license: str | None
    source: str | None
    skipped: Sequence[tuple[str, str]]
    ray: str | None
    torchrun: bool


@dataclass(frozen=True)
class KeyPlan:
    """Everything that determines the keys of a text, down to the last bit."""

    location: KeyLocation
    windows: WindowRecord
    dtype: str
    batch_tokens: int  # tokens of one forward pass. The shape of a matrix product affects rounding
    pairs: PairTokenizer | None = None  # cuts the sources and targets of an encoder-decoder model

    def as_text(self, model: nn.Module, tokenizer: Any) -> dict[str, str]:
        """Returns the plan as text, to compare it with the plan of an unfinished job."""
        record = model_record(model)
        plan = {
            "model type": record.type,
            "model configuration": record.config_sha256[:12],
            "model precision": record.dtype,
            "tokenizer": tokenizer_record(tokenizer).sha256[:12],
            "key": str(self.location),
            "keys-dtype": self.dtype,
            "batch-tokens": self.batch_tokens,
            **self.windows.model_dump(),
            "pairs": self.pair_record,
            "targets begin with": self.pairs and self.pairs.opening,
        }
        return {name: str(value) for name, value in plan.items()}

    @property
    def pair_record(self) -> PairsRecord | None:
        if self.pairs is None:
            return None
        return PairsRecord(**{n: getattr(self.pairs, n) for n in PairsRecord.model_fields})

    def manifest(self, model: nn.Module, tokenizer: Any, **fields: Any) -> Manifest:
        """The manifest of a datastore of such keys, with further fields."""
        return Manifest(
            created_with=__version__,
            model=model_record(model),
            tokenizer=tokenizer_record(tokenizer),
            key=KeyRecord(**vars(self.location)),
            windows=self.windows,
            pairs=self.pair_record,
            **fields,
        )


@dataclass(frozen=True)
class BuildPlan:
    """A build's settings, all of them within their ranges."""

    keys: KeyPlan
    index: IndexConfig
    # The settings that hold where a user gives none: the fixed ones, and defaults.
    settings: KNNConfig
    fixed: StoredSettings  # those that the user gave, which the build keeps
    calibrate: bool
    on_demand: OnDemandRecord | None  # how keys are computed on demand; None where they are stored

    @property
    def fits_gate(self) -> bool:
        """Whether a gate is fitted. With keys on demand that would read the corpus many times."""
        chooses = self.calibrate and self.fixed.get("lmbda") is None
        return chooses and self.keys.pairs is None and self.on_demand is None

    def as_text(self, model: nn.Module, tokenizer: Any) -> dict[str, str]:
        return {**self.keys.as_text(model, tokenizer), "keys on demand": str(self.on_demand)}


def planned(model: nn.Module, tokenizer: Any, settings: PlanSettings) -> BuildPlan:
    dtype = settings.get("keys_dtype", "float16")
    if dtype not in ("float16", "float32"):
        raise ConfigError(f"keys can be stored as float16 or float32, not {dtype!r}")
    location = find_key(model, settings.get("key", DEFAULT_KEY))
    batch_tokens = tokens_of_pass(model, settings.get("batch_tokens"))
    prefix, source = settings.get("source_prefix"), settings.get("source_lang")
    target = settings.get("target_lang")
    pairs = pair_tokenizer(
        model, tokenizer, source_prefix=prefix, source_lang=source, target_lang=target
    )
    if pairs is None and (prefix or source or target):
        raise ConfigError(
            "a causal model has no source input: remove --source-prefix, --source-lang and "
            "--target-lang"
        )
    if pairs is not None and settings.get("concatenate"):
        raise ConfigError(
            "source-target pairs cannot be concatenated into one stream: remove --concatenate"
        )
    fixed = stored_settings(settings)
    window, stride = resolve(settings.get("window") or WindowConfig(), context_length(model))
    windows = WindowRecord(
        window=window, stride=stride, concatenate=settings.get("concatenate", False)
    )
    keys = KeyPlan(location, windows, dtype, batch_tokens, pairs)
    index = index_config(settings.get("index"))
    stores_keys = settings.get("store_keys", True)
    return BuildPlan(
        keys=keys,
        index=index,
        settings=KNNConfig().with_given(**fixed),
        fixed=fixed,
        calibrate=settings.get("calibrate", True),
        on_demand=None if stores_keys else _on_demand_record(window, index, pairs),
    )


def _on_demand_record(
    window: int, index: IndexConfig, pairs: PairTokenizer | None
) -> OnDemandRecord:
    """How keys are made on demand for a model that reads windows of a number of tokens."""
    if pairs is not None:
        raise ConfigError(
            "keys on demand need a causal model, since passages are retrieved by the text being "
            "generated: remove --no-keys"
        )
    is_factory = index.factory != "auto" and Kind(index.factory, 1, "l2").approximate
    if is_factory or index.nprobe is not None:
        raise ConfigError(
            "without keys there is no index to build: remove either --no-keys, or --index and "
            "--nprobe"
        )
    usual = OnDemandRecord()
    passage = max(1, min(usual.passage, window // 2))
    return OnDemandRecord(passage=passage, context=min(usual.context, window - passage))
