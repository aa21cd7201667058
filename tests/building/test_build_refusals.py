"""Refusals of a build, in one line, and before a folder is made where it can."""

import numpy as np
import pytest
import torch
from conftest import TEXTS, make_gpt2
from interrupted import Stop, stopping

from knn_logits import IndexConfig, WindowConfig, build_datastore
from knn_logits.errors import ConfigError, MismatchError, ModelError


def test_weights_that_are_not_finite(tokenizer, tmp_path):
    model = make_gpt2()
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="is nan, which is no number") as caught:
        build_datastore(model, tokenizer, TEXTS[:2], tmp_path / "s")
    assert "transformer.h.1.mlp:input" in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_keys_too_large_for_half_precision(tokenizer, tmp_path):
    model = make_gpt2()
    with torch.no_grad():
        model.transformer.h[1].ln_2.weight.fill_(1e6)
    with pytest.raises(ModelError, match="float32") as caught:
        build_datastore(model, tokenizer, TEXTS[:2], tmp_path / "s")
    assert "is no number of float16" in str(caught.value)
    assert "--keys-dtype float32" in str(caught.value)
    store = build_datastore(
        model, tokenizer, TEXTS[:2], tmp_path / "s", keys_dtype="float32", calibrate=False
    )
    keys = store.keys(np.arange(len(store)))
    assert np.isfinite(keys).all()
    assert np.abs(keys).max() > 1e5


def test_a_tokenizer_that_knows_more_tokens_than_the_model(tokenizer, tmp_path):
    small = make_gpt2(vocabulary=300)
    with pytest.raises(ConfigError, match="has only 300 tokens") as caught:
        build_datastore(small, tokenizer, TEXTS, tmp_path / "s")
    assert "tokenizer that belongs to the model" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"window": WindowConfig(257)}, ConfigError),
        ({"keys_dtype": "bfloat16"}, ConfigError),
        ({"batch_tokens": 0}, ConfigError),
        ({"suffix_weight": 0.0}, ConfigError),
        ({"suffix_weight": "much"}, ConfigError),
        ({"key": "somewhere"}, ConfigError),
        ({"key": "transformer.h.9.mlp:input"}, ModelError),
        ({"source_prefix": "translate: "}, ConfigError),
        ({"source_lang": "en_XX"}, ConfigError),
        ({"target_lang": "de_DE"}, ConfigError),
        ({"index": IndexConfig("nonsense")}, ConfigError),
        ({"keys": False}, ConfigError),
    ],
)
def test_settings_are_checked_before_a_folder_is_made(build, tmp_path, settings, error):
    with pytest.raises(error):
        build(TEXTS, tmp_path / "s", **settings)
    assert not (tmp_path / "s").exists()


def test_an_unfinished_build_with_other_windows_is_refused(build, tmp_path, monkeypatch):
    monkeypatch.setattr("knn_logits.engine.windows._BUFFER_BYTES", 1024)
    monkeypatch.setattr("knn_logits.store.writer.SHARD_BYTES", 2048)
    settings = {"window": WindowConfig(16, 8), "batch_tokens": 32}
    with pytest.raises(Stop):
        build(TEXTS, tmp_path / "s", progress=stopping(100), **settings)
    settings["window"] = WindowConfig(16, 4)
    with pytest.raises(MismatchError, match="its stride is 8, and here it is 4"):
        build(TEXTS, tmp_path / "s", **settings)
