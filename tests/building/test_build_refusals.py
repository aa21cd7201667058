"""What a build refuses, in one line, and before a folder is made where it can."""

import numpy as np
import pytest
import torch
from conftest import TEXTS, make_gpt2
from folders import hashes, names

from knn_logits import IndexConfig, WindowConfig, build_datastore
from knn_logits.corpus.documents import as_documents
from knn_logits.engine.pairs import context_length
from knn_logits.errors import ConfigError, CorpusError, DatastoreError, ModelError
from knn_logits.store import layout


def test_weights_that_are_not_finite(tokenizer, tmp_path):
    model = make_gpt2()
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="not finite") as caught:
        build_datastore(model, tokenizer, TEXTS[:2], tmp_path / "s")
    assert "transformer.h.1.mlp:input" in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_keys_too_large_for_half_precision(tokenizer, tmp_path):
    model = make_gpt2()
    with torch.no_grad():
        model.transformer.h[1].ln_2.weight.fill_(1e6)
    with pytest.raises(ModelError, match="float32") as caught:
        build_datastore(model, tokenizer, TEXTS[:2], tmp_path / "s")
    assert "too large for float16" in str(caught.value)
    assert "--keys-dtype float32" in str(caught.value)
    store = build_datastore(
        model, tokenizer, TEXTS[:2], tmp_path / "s", keys_dtype="float32", calibrate=False
    )
    keys = store.keys(np.arange(len(store)))
    assert np.isfinite(keys).all()
    assert np.abs(keys).max() > 1e5


@pytest.mark.parametrize("texts", [[], [""], ["a"], ["a", "b"]])
def test_a_corpus_of_nothing(build, tmp_path, texts):
    with pytest.raises(CorpusError, match="two tokens") as caught:
        build(texts, tmp_path / "s")
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_knows_more_tokens_than_the_model(tokenizer, tmp_path):
    small = make_gpt2(vocabulary=300)
    with pytest.raises(ConfigError, match="but the model only 300") as caught:
        build_datastore(small, tokenizer, TEXTS, tmp_path / "s")
    assert "tokenizer that belongs to the model" in str(caught.value)


def test_a_folder_that_is_taken(build, tmp_path):
    build(TEXTS[:1], tmp_path / "s")
    before = hashes(tmp_path / "s")
    with pytest.raises(DatastoreError, match="--overwrite"):
        build(TEXTS, tmp_path / "s")
    assert hashes(tmp_path / "s") == before
    store = build(TEXTS[:2], tmp_path / "s", overwrite=True)
    assert store.manifest.documents == 2
    (tmp_path / "s" / "notes.txt").write_text("mine")
    with pytest.raises(DatastoreError, match=r"notes\.txt"):
        build(TEXTS, tmp_path / "s", overwrite=True)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"window": WindowConfig(257)}, ConfigError),
        ({"keys_dtype": "bfloat16"}, ConfigError),
        ({"batch_tokens": 0}, ConfigError),
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


def test_pairs_without_a_source(marian, tokenizer, tmp_path):
    with pytest.raises(CorpusError, match=r"0 has no source: .*pairs"):
        build_datastore(marian, tokenizer, TEXTS, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_pairs_in_one_stream(marian, tokenizer, tmp_path):
    with pytest.raises(ConfigError, match="--concatenate"):
        build_datastore(marian, tokenizer, [], tmp_path / "s", concatenate=True)


def test_a_corpus_that_breaks_off(build, tmp_path):
    def documents():
        yield TEXTS[0]
        raise CorpusError("no more")

    with pytest.raises(CorpusError, match="no more"):
        build(documents(), tmp_path / "s")
    assert not (tmp_path / "s").exists()
    store = build(TEXTS[:2], tmp_path / "s")
    assert names(store.folder) == [
        layout.CHECKS,
        layout.MANIFEST,
        layout.DOCUMENTS,
        "keys-00000.npy",
        layout.TOKENS,
    ]


def test_the_context_length_of_models():
    assert context_length(make_gpt2()) == 256

    class Limitless(torch.nn.Module):
        config = type("Config", (), {"max_position_embeddings": None, "n_positions": -1})()

    assert context_length(Limitless()) is None


def test_a_path_in_place_of_a_text_is_refused(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.rst").write_text("some text")
    for path in ("notes/", "file.rst", "absent.rst", str(tmp_path)):
        with pytest.raises(CorpusError, match="read_corpus") as caught:
            build([path], tmp_path / "store")
        assert "\n" not in str(caught.value)
    texts = ["notes", "a/b", "see file.rst", "x" * 5000, "\0.x"]
    kept = [one.text for one in as_documents(texts)]
    assert kept == texts
