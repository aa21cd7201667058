"""Checks by the canary, the keys of a fixed text, whether a model belongs to a datastore."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from knn_logits.arrays import Array
from knn_logits.engine.forward import evaluating, input_device, key_states
from knn_logits.engine.location import KeyLocation, is_encoder_decoder
from knn_logits.engine.model_loading import TRANSFORMERS
from knn_logits.engine.pairs import PairTokenizer, context_length
from knn_logits.errors import DatastoreError, MismatchError, ModelError
from knn_logits.store.datastore import Datastore
from knn_logits.store.layout import CANARY_KEYS, CANARY_TOKENS
from knn_logits.store.records import ModelRecord, TokenizerRecord

logger = logging.getLogger(__name__)

CANARY_LENGTH = 32

# Limits of the relative distance between a model's keys and the canary's. Rounding in float32 stays
# far below the first. Rounding in half precision, which other processors do otherwise, stays below
# the second, where 98 of 100 neighbors are the same. Another model is above it.
SAME_KEYS = 1e-3
SAME_WEIGHTS = 0.05

# Keys of quantised weights in another engine stay below this: Q4_1 differs by 4% from bfloat16, and
# at 35% six of ten neighbors are still the same.
SAME_QUANTISED = 0.35

# Settings that say where a model came from or how it is run, and not what it computes.
_VOLATILE = (
    "_name_or_path", "_commit_hash", "_attn_implementation", "attn_implementation",
    "architectures", "dtype", "torch_dtype", "output_attentions", "output_hidden_states",
    "return_dict", "transformers_version", "use_cache",
)  # fmt: skip
_SAMPLE_TEXTS = (
    "The quick brown fox, aged 42, jumped over 13 lazy dogs in 1987.",
    "  two  spaces\tand a tab\nand lines\n\n",
    "Grüße, naïve café, Ελλάδα, Привет, 你好, 👍🏽, don't",
    "def f(x_1): return {'a': [x_1**2, -3.5e-7]}  # comment",
)

# By tokenizer its size, and its record.
_RECORDS: WeakKeyDictionary[Any, tuple[int, TokenizerRecord]] = WeakKeyDictionary()


def _public_name(name: object) -> str:
    """Returns a Hub id, or only the last part of a folder's path, which may be private."""
    text = str(name or "")
    return Path(text).resolve().name if text and Path(text).exists() else text


def model_record(model: nn.Module) -> ModelRecord:
    config: Any = getattr(model, "config", None)
    settings = config.to_dict() if config is not None else {}
    stable = {name: value for name, value in settings.items() if name not in _VOLATILE}
    text = json.dumps(stable, sort_keys=True, default=str)
    parameter = next(model.parameters(), None)
    return ModelRecord(
        id=_public_name(getattr(config, "_name_or_path", "")) or type(model).__name__,
        revision=getattr(config, "_commit_hash", None),
        type=str(getattr(config, "model_type", type(model).__name__)),
        config_sha256=hashlib.sha256(text.encode()).hexdigest(),
        dtype=getattr(model, "precision", None)
        or str(parameter.dtype if parameter is not None else torch.float32)[6:],
        vocabulary=vocabulary_size(model),
        engine=str(getattr(model, "engine", TRANSFORMERS)),
        adapter=_adapters_of(model),
    )


def _adapters_of(model: nn.Module) -> str | None:
    """Returns the names of the adapters that PEFT's layers apply; None without any."""
    names: dict[str, None] = {}
    for module in model.modules():
        active = vars(module).get("_active_adapter", ())
        if not vars(module).get("_disable_adapters", False):
            names |= dict.fromkeys([active] if isinstance(active, str) else active)
    return ", ".join(names) or None


def tokenizer_record(tokenizer: Any) -> TokenizerRecord:
    """Makes the manifest's record of a tokenizer: a hash of its vocabulary and of how it cuts."""
    size, record = _RECORDS.get(tokenizer, (None, None))
    if record is None or size != len(tokenizer):
        # A padding token that a user adds does not change how the corpus is cut.
        added = set(tokenizer.get_added_vocab())
        words = sorted(item for item in tokenizer.get_vocab().items() if item[0] not in added)
        cuts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in _SAMPLE_TEXTS]
        record = TokenizerRecord(
            id=_public_name(getattr(tokenizer, "name_or_path", "")) or type(tokenizer).__name__,
            sha256=hashlib.sha256(json.dumps([words, cuts]).encode()).hexdigest(),
            vocabulary=max(1, len(words)),
        )
        _RECORDS[tokenizer] = len(tokenizer), record
    return record


def vocabulary_size(model: nn.Module) -> int:
    """The number of scores that the model gives at each token."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    weight = getattr(head, "weight", None)
    if callable(weight) and not isinstance(weight, torch.Tensor):
        raise ModelError(
            "models of quantize_dynamic are not supported: use the model before, or one that "
            "transformers loads quantised (quantization_config)"
        )
    if weight is not None:
        return int(weight.shape[0])
    config: Any = getattr(model, "config", None)
    get_text = getattr(config, "get_text_config", None)
    return int((get_text() if callable(get_text) else config).vocab_size)


def canary_tokens(tokenizer: Any, vocabulary: int) -> Array:
    """Cuts a fixed text into tokens. It is not from the corpus, which may have to be forgotten."""
    ids = [token for text in _SAMPLE_TEXTS for token in tokenizer(text)["input_ids"]]
    scored = [token for token in ids if token < vocabulary][:CANARY_LENGTH]
    return np.asarray(scored if len(scored) > 1 else [0, vocabulary - 1], np.int32)


def canary_keys(model: nn.Module, location: KeyLocation, tokens: Array) -> Array:
    ids = torch.from_numpy(np.asarray(tokens, np.int64)).unsqueeze(0).to(input_device(model))
    inputs = {"input_ids": ids}
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = ids
    with evaluating(model):
        states = key_states(model, location, inputs)[0]
    return states.float().cpu().numpy()


def relative_error(keys: Array, expected: Array) -> float:
    """Computes |found - expected| / |expected|. It is infinite if the shapes differ."""
    if keys.shape != expected.shape:
        return float("inf")
    # A file may hold numbers whose squares exceed single precision, so this takes double precision.
    keys, expected = keys.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(keys - expected) / max(float(np.linalg.norm(expected)), 1e-12))


def pair_tokenizer(
    model: nn.Module, tokenizer: Any, store: Datastore | None = None, **options: str | None
) -> PairTokenizer | None:
    """Makes the tokenizer of pairs for an encoder-decoder model; None for a causal model.

    `options` are `source_prefix`, `source_lang` and `target_lang`; None takes the datastore's.
    """
    if not is_encoder_decoder(model):
        return None
    record = store.manifest.pairs if store is not None else None
    settings = record.model_dump() if record is not None else {}
    settings |= {name: value for name, value in options.items() if value is not None}
    return PairTokenizer(model, tokenizer, **settings)


def check_model(
    model: nn.Module, store: Datastore, location: KeyLocation, *, adds: bool = False
) -> None:
    """Refuses a model whose keys are not the datastore's, or too far from those to add more."""
    manifest = store.manifest
    size = vocabulary_size(model)
    largest = int(store.values.max()) if len(store) else -1
    if largest >= size:
        raise MismatchError(
            f"{store.folder} contains token {largest}, but the model's vocabulary has only "
            f"{size} tokens: "
            f"load {manifest.model.named}, which built the datastore"
        )
    window, context = manifest.windows.window, context_length(model)
    if manifest.pairs is None and context is not None and window > context:
        raise MismatchError(
            f"{store.folder} was built by another model (its windows have {window:,} tokens, but "
            f"this model's context is only {context:,}): load {manifest.model.named}, which built "
            "it"
        )
    tokens = store.checks.get(CANARY_TOKENS)
    expected = store.checks.get(CANARY_KEYS)
    if tokens is None or expected is None or not len(tokens):
        raise MismatchError(
            f"{store.folder} has no canary to compare the model's keys with: rebuild the datastore"
        )
    keys = canary_keys(model, location, tokens)
    error = relative_error(keys, expected)
    mine, theirs = model_record(model), manifest.model
    same_engine = mine.engine == theirs.engine == TRANSFORMERS
    if not error <= (SAME_WEIGHTS if same_engine else SAME_QUANTISED):
        raise MismatchError(
            f"{store.folder} was built by another model (its keys differ by {error:.0%}): load "
            f"{theirs.named}, which built it"
        )
    if adds and not same_engine and error > SAME_KEYS:
        raise MismatchError(
            f"the keys of {store.folder} differ by {error:.1%} from those of this model, which "
            f"{mine.engine} runs: add documents with the model that built it"
        )
    if error > SAME_WEIGHTS:
        logger.warning(
            f"the model's keys ({mine.engine} in {mine.dtype}) differ by {error:.1%} from those of "
            f"{store.folder} ({theirs.engine} in {theirs.dtype}), so some of its neighbors differ: "
            "build the datastore with this model to find the same"
        )


def check_tokenizer(tokenizer: Any, store: Datastore) -> None:
    """Refuses a tokenizer that cuts text in another way than the datastore's."""
    if tokenizer_record(tokenizer).sha256 != store.manifest.tokenizer.sha256:
        raise MismatchError(
            f"{store.folder} was built with a different tokenizer: load the model "
            f"{store.manifest.model.named!r}, with which it was built, and its tokenizer"
        )


def needs_keys(store: Datastore, command: str) -> None:
    """Refuses what needs stored keys, for a datastore without them."""
    if store.manifest.on_demand is not None:
        raise DatastoreError(
            f"{store.folder} computes its keys on demand, but {command} needs stored keys: "
            "rebuild the datastore without --no-keys"
        )
    if not store.has_keys:
        raise DatastoreError(
            f"{store.folder} has no keys, but {command} needs them: fetch them with `knn-logits "
            "pull --keys`, or rebuild the datastore"
        )
