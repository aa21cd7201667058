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
from knn_logits.engine.location import KeyLocation, find_key, is_encoder_decoder
from knn_logits.engine.model_loading import TRANSFORMERS, engine_of
from knn_logits.engine.pairs import PairTokenizer, context_length
from knn_logits.errors import ConfigError, DatastoreError, MismatchError, ModelError
from knn_logits.metrics import COMPARISONS
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.manifest import Manifest
from knn_logits.store.records import ModelRecord, TokenizerRecord

logger = logging.getLogger(__name__)

CANARY_TOKENS = layout.CANARY_TOKENS
CANARY_KEYS = layout.CANARY_KEYS
CANARY_LENGTH = 32

# Limits of the relative distance between a model's keys and the canary's. Rounding in the same
# precision stays far below the first. The same weights in another precision stay below the second,
# and another model is above it.
SAME_KEYS = 1e-3
SAME_WEIGHTS = 0.05

# Keys of another engine or of quantised weights are compared by their neighbors: the share that
# must be the same, and the number of neighbors of each sampled entry.
MIN_NEIGHBOR_SHARE = 0.6
NEIGHBORS = 64
_SAMPLE = 20_000

# Settings that say where a model came from or how it is run, and not what it computes.
_VOLATILE = frozenset(
    (
        "_name_or_path",
        "_commit_hash",
        "_attn_implementation",
        "attn_implementation",
        "architectures",
        "dtype",
        "torch_dtype",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "transformers_version",
        "use_cache",
    )
)
_SAMPLE_TEXTS = (
    "The quick brown fox, aged 42, jumped over 13 lazy dogs in 1987.",
    "  two  spaces\tand a tab\nand lines\n\n",
    "Grüße, naïve café, Ελλάδα, Привет, 你好, 👍🏽, don't",
    "def f(x_1): return {'a': [x_1**2, -3.5e-7]}  # comment",
)


# By tokenizer its size, its number of words, and a hash of its words.
_VOCABULARIES: WeakKeyDictionary[Any, tuple[int, int, Any]] = WeakKeyDictionary()


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
        engine=engine_of(model),
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
    if not callable(tokenizer) or not hasattr(tokenizer, "get_added_vocab"):
        raise ConfigError(
            f"expected a transformers tokenizer, not {type(tokenizer).__name__}: pass the "
            "model's tokenizer"
        )
    words, whole = _hashed_vocabulary(tokenizer)
    cuts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in _SAMPLE_TEXTS]
    whole.update(f", {json.dumps(cuts)}]".encode())
    return TokenizerRecord(
        id=_public_name(getattr(tokenizer, "name_or_path", "")) or type(tokenizer).__name__,
        sha256=whole.hexdigest(),
        vocabulary=max(1, words),
    )


def _hashed_vocabulary(tokenizer: Any) -> tuple[int, Any]:
    """Returns the number of words of a tokenizer, and a hash that has read them."""
    size = len(tokenizer)
    cached = _VOCABULARIES.get(tokenizer)
    if cached is None or cached[0] != size:
        vocabulary = tokenizer.get_vocab()
        # A padding token that a user adds does not change how the corpus is cut.
        added = set(tokenizer.get_added_vocab())
        words = sorted(item for item in vocabulary.items() if item[0] not in added)
        whole = hashlib.sha256(f"[{json.dumps(words)}".encode())
        cached = _VOCABULARIES[tokenizer] = size, len(words), whole
    return cached[1], cached[2].copy()


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


def canary_keys(
    model: nn.Module, location: KeyLocation, tokens: Array, source: Array | None = None
) -> Array:
    device = input_device(model)
    ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).unsqueeze(0).to(device)
    inputs = {"input_ids": ids}
    if is_encoder_decoder(model):
        read = tokens if source is None else source
        inputs["input_ids"] = torch.from_numpy(np.asarray(read, np.int64)).unsqueeze(0).to(device)
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


def check_causal(model: nn.Module, location: KeyLocation, tokens: Array) -> None:
    """Refuses a model whose state before a token depends on the tokens after it."""
    half = max(1, len(tokens) // 2)
    short = canary_keys(model, location, tokens[:half], tokens)
    long = canary_keys(model, location, tokens, tokens)[:half]
    exact = model_record(model).dtype in ("float32", "float64")
    tolerance = SAME_KEYS if exact else SAME_WEIGHTS
    # Keys that are not finite say nothing about this. They are refused elsewhere.
    if np.linalg.norm(short - long) > tolerance * np.linalg.norm(long):
        raise ModelError(
            f"{type(model).__name__} is bidirectional: its states depend on later tokens, so it "
            "cannot predict them; use a causal language model"
        )


def locate_key(model: nn.Module, store: Datastore) -> KeyLocation:
    """Finds the place in a model that a datastore's keys were taken from."""
    return find_key(model, store.manifest.key.name)


def pair_tokenizer(
    model: nn.Module, tokenizer: Any, store: Datastore | None = None, **options: str | None
) -> PairTokenizer | None:
    """Makes the tokenizer of source and target pairs for an encoder-decoder model.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        store: A datastore whose pairs were cut in the same way, if there is one.
        options: `source_prefix`, `source_lang` and `target_lang`; None takes the datastore's.

    Returns:
        The tokenizer of pairs, or None for a causal model.
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
    if keys.shape != expected.shape:
        raise MismatchError(
            f"the model's states have dimension {keys.shape[-1]}, but the keys of {store.folder} "
            f"have {expected.shape[-1]}: load {manifest.model.named}, which built the datastore"
        )
    error = relative_error(keys, expected)
    mine, theirs = model_record(model), manifest.model
    if error > SAME_KEYS and {mine.engine, theirs.engine} != {TRANSFORMERS} and store.has_keys:
        if adds:
            raise MismatchError(
                f"{store.folder} has keys of {theirs.id} ({theirs.engine}, {theirs.dtype}), and "
                f"those of {mine.id} ({mine.engine}, {mine.dtype}) differ by {error:.0%}: add "
                "documents with the model that built it"
            )
        _check_neighbors(model, store, keys, expected)
        return
    if not error <= SAME_WEIGHTS:
        raise MismatchError(
            f"{store.folder} was built by another model ({_difference(model, manifest)}; its keys "
            f"differ by {error:.0%}): load {manifest.model.named}, which built it"
        )
    if error > SAME_KEYS:
        logger.warning(
            "the model's keys differ by %.1f%% from those of %s (precision %s there, %s here), "
            "so its neighbors may differ slightly; load the model in that precision: --dtype, or "
            "`dtype` of from_pretrained",
            100 * error,
            store.folder,
            manifest.model.dtype,
            model_record(model).dtype,
        )


def _check_neighbors(model: nn.Module, store: Datastore, keys: Array, expected: Array) -> None:
    """Refuses a model whose keys have other neighbors than the stored ones of the same text."""
    mine, theirs = model_record(model), store.manifest.model
    share = common_neighbors(store, keys[1:], expected[1:])
    engine, stored_engine = f"{mine.engine}, {mine.dtype}", f"{theirs.engine}, {theirs.dtype}"
    message = (
        f"keys of {mine.id} ({engine}) share {share:.0%} of their {NEIGHBORS} neighbors with those "
        f"of {store.folder} ({stored_engine})"
    )
    if share < MIN_NEIGHBOR_SHARE:
        raise MismatchError(
            f"{message}, and {MIN_NEIGHBOR_SHARE:.0%} are needed: either this is not {theirs.id}, "
            "or its quantisation is too coarse; build a datastore with this model"
        )
    logger.warning("%s", message)


def common_neighbors(store: Datastore, keys: Array, expected: Array) -> float:
    """The share of nearest entries that two keys of each text, [texts, dim], have in common."""
    step = max(1, len(store) // _SAMPLE)
    sample = torch.from_numpy(store.keys(np.arange(0, len(store), step)).astype(np.float32))
    metric = COMPARISONS[store.manifest.metric]
    prepared = metric.prepared(sample)
    norms, k = metric.norms(prepared), min(NEIGHBORS, len(sample))
    nearest = [
        metric.scores(
            metric.prepared(torch.from_numpy(queries.astype(np.float32))), prepared, norms
        )
        .topk(k)
        .indices
        for queries in (keys, expected)
    ]
    same = (nearest[0].unsqueeze(2) == nearest[1].unsqueeze(1)).any(2)
    return float(same.float().mean())


def _difference(model: nn.Module, manifest: Manifest) -> str:
    mine, theirs = model_record(model), manifest.model
    if mine.type != theirs.type:
        return f"a {theirs.type}, not a {mine.type}"
    if mine.config_sha256 != theirs.config_sha256:
        return f"a {theirs.type} of another configuration"
    if mine.adapter != theirs.adapter:
        return "the same model without an adapter" if mine.adapter else "the same with an adapter"
    return "the same configuration with other weights"


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
