import copy
import logging

import numpy as np
import pytest
import torch
from conftest import TEXTS, make_gpt2, trained_bpe
from transformers import PreTrainedTokenizerFast

import knn_logits
from knn_logits.engine.compatibility import (
    SAME_WEIGHTS,
    canary_keys,
    check_model,
    check_tokenizer,
    model_record,
    vocabulary_size,
)
from knn_logits.engine.location import find_key
from knn_logits.errors import MismatchError
from knn_logits.store.layout import CANARY_KEYS, CANARY_TOKENS


def check(model, store):
    check_model(model, store, find_key(model))


def refusal(model, store):
    with pytest.raises(MismatchError) as caught:
        check(model, store)
    text = str(caught.value)
    assert "\n" not in text
    assert str(store.folder) in text
    return text


def difference(model, store):
    """Relative distance of a model's keys from the canary's."""
    found = canary_keys(model, find_key(model), store.checks[CANARY_TOKENS])
    expected = store.checks[CANARY_KEYS]
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


# The model


def test_the_model_that_built_it_is_accepted_without_a_word(model, store, caplog):
    with caplog.at_level(logging.DEBUG, "knn_logits"):
        check(model, store)
        check(make_gpt2(), store)
    assert not caplog.records
    assert difference(model, store) == 0.0


@pytest.mark.parametrize("left", [None, 0])
def test_without_a_canary_no_model_is_accepted(model, store, monkeypatch, left):
    names = (CANARY_TOKENS, CANARY_KEYS)
    emptied = {} if left is None else {name: store.checks[name][:0] for name in names}
    monkeypatch.setattr(store, "checks", emptied)
    assert "has no canary" in refusal(model, store)


def scaled(name, factor):
    model = make_gpt2()
    with torch.no_grad():
        model.get_parameter(name).mul_(factor)
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: make_gpt2(seed=1), ["another model", "GPT2LMHeadModel"]),
        (lambda _: scaled("transformer.wte.weight", 1.5), []),
        (lambda _: scaled("transformer.h.1.attn.c_proj.weight", 1.5), []),
        (lambda _: scaled("transformer.wte.weight", float("nan")), []),
        (lambda _: make_gpt2(width=48), []),
        (lambda _: make_gpt2(layers=3), []),
        (lambda largest: make_gpt2(vocabulary=largest), ["token {0}", "has only {0} tokens"]),
    ],
    ids=["seed", "embeddings", "attention", "not finite", "width", "layers", "vocabulary"],
)
def test_another_model_is_refused(store, make, said):
    largest = int(store.values.max())
    text = refusal(make(largest), store)
    assert all(part.format(largest) in text for part in said)


def test_more_tokens_than_the_datastore_has(model, store):
    """Embeddings that were resized for further tokens change no key."""
    grown = copy.deepcopy(model)
    torch.manual_seed(0)
    grown.resize_token_embeddings(400)
    assert vocabulary_size(grown) == 400
    check(grown, store)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_same_weights_in_half_precision_are_accepted_without_a_word(store, dtype, caplog):
    model = make_gpt2().to(dtype)
    error = difference(model, store)
    assert 0 < error < SAME_WEIGHTS / 2
    with caplog.at_level(logging.WARNING, "knn_logits"):
        check(model, store)
        # Another machine may compute otherwise in the same precision.
        check(scaled("transformer.wte.weight", 1.01), store)
    assert not caplog.records


def test_the_record_of_a_model():
    record = model_record(make_gpt2())
    assert (record.id, record.type, record.dtype) == ("GPT2LMHeadModel", "gpt2", "float32")
    again = make_gpt2(seed=5).to(torch.bfloat16)
    again.config._name_or_path = "folder"
    again.config.use_cache = False
    assert model_record(again).config_sha256 == record.config_sha256
    assert (model_record(again).id, model_record(again).dtype) == ("folder", "bfloat16")
    assert model_record(make_gpt2(layers=1)).config_sha256 != record.config_sha256


# The tokenizer


def test_a_padding_token_that_was_added(tokenizer, store):
    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({"pad_token": "<pad>"})
    assert len(other) == len(tokenizer) + 1
    other.padding_side = "left"
    other.model_max_length = 5
    check_tokenizer(other, store)


@pytest.mark.parametrize(
    ("texts", "vocabulary", "prefix_space"),
    [
        (["Some other words altogether, of another kind."] * 9, 384, False),
        (TEXTS * 4, 300, False),
        (TEXTS * 4, 384, True),
    ],
)
def test_another_tokenizer(store, texts, vocabulary, prefix_space):
    bpe = trained_bpe(texts, ["<|endoftext|>"], vocabulary, prefix_space=prefix_space)
    other = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>")
    with pytest.raises(MismatchError, match="a different tokenizer") as caught:
        check_tokenizer(other, store)
    assert "\n" not in str(caught.value)


def test_a_datastore_of_an_adapter_names_the_adapter(model, store, tokenizer, tmp_path):
    adapted = copy.deepcopy(model)
    layer = next(part for part in adapted.modules() if isinstance(part, torch.nn.LayerNorm))
    layer.weight.data *= 1.5
    layer._active_adapter = ["law"]  # as PEFT's layers have it
    other = knn_logits.build_datastore(
        adapted, tokenizer, TEXTS, tmp_path / "s", k=4, calibrate=False
    )
    assert "load " + f"{other.manifest.model.id} with its adapter 'law'" in refusal(model, other)
    refusal(adapted, store)
    layer._disable_adapters = True
    assert model_record(adapted).adapter is None
