"""The content of a built datastore: the same bytes for the same corpus."""

import copy

import numpy as np
import pytest
import torch
from conftest import TEXTS, make_gpt2
from folders import hashes
from interrupted import Stop, stopping

from knn_logits import Document, IndexConfig, WindowConfig, build_datastore
from knn_logits.engine.compatibility import canary_tokens
from knn_logits.errors import CorpusError
from knn_logits.store.layout import CANARY_KEYS, CANARY_TOKENS

SMALL_WINDOW = WindowConfig(16, 8)


def naive_keys(model, contexts, window, stride, module, side):
    """Keys by one plain forward pass a window, taken with a plain forward hook."""
    taken = []
    part = model.get_submodule(module)

    def after(_, __, output):
        taken.append(output if isinstance(output, torch.Tensor) else output[0])

    handle = (
        part.register_forward_pre_hook(lambda _, arguments: taken.append(arguments[0]))
        if side == "input"
        else part.register_forward_hook(after)
    )
    keys, values = [], []
    try:
        for tokens in contexts:
            predicted, begin = 1, 0
            while predicted < len(tokens):
                inputs = tokens[begin : begin + window]
                taken.clear()
                with torch.no_grad():
                    model(torch.tensor([inputs]))
                states = taken[0].view(len(inputs), -1)
                for place in range(len(inputs)):
                    if begin + place + 1 == predicted < len(tokens):
                        keys.append(states[place].float().numpy())
                        values.append(tokens[predicted])
                        predicted += 1
                begin += stride
    finally:
        handle.remove()
    return np.array(keys), values


def cut(tokenizer, texts):
    return [tokenizer(text)["input_ids"] for text in texts]


# Its content


@pytest.mark.parametrize(
    ("concatenate", "size"),
    [(False, (8, 4)), (True, (16, 16)), (True, (24, 5)), (False, (256, 128))],
)
def test_keys_and_values_are_those_of_a_plain_loop(
    model, tokenizer, build, tmp_path, concatenate, size
):
    store = build(
        TEXTS,
        tmp_path / "s",
        window=WindowConfig(*size),
        concatenate=concatenate,
        keys_dtype="float32",
    )
    contexts = cut(tokenizer, TEXTS)
    if concatenate:
        contexts = [[one for tokens in contexts for one in tokens]]
    keys, values = naive_keys(model, contexts, *size, "transformer.h.1.mlp", "input")
    assert store.values.tolist() == values
    found = store.keys(np.arange(len(store)))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, keys, rtol=1e-4, atol=1e-4)
    assert store.manifest.windows.concatenate is concatenate


@pytest.mark.parametrize(
    ("key", "module", "side"),
    [
        ("ffn_input", "transformer.h.1.mlp", "input"),
        ("layer_output", "transformer.h.1", "output"),
        ("head_input", "transformer", "output"),
        ("transformer.h.0.attn:output", "transformer.h.0.attn", "output"),
        ("transformer.ln_f:output", "transformer.ln_f", "output"),
    ],
)
def test_keys_of_other_places(model, tokenizer, tmp_path, key, module, side):
    store = build_datastore(
        model, tokenizer, TEXTS[:3], tmp_path / "s", key=key, window=SMALL_WINDOW, calibrate=False
    )
    taken, _ = naive_keys(model, cut(tokenizer, TEXTS[:3]), 16, 8, module, side)
    record = store.manifest.key
    assert (record.name, record.module, record.side) == (key, module, side)
    found = store.keys(np.arange(len(store)))
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, taken, rtol=2e-3, atol=2e-3)


def test_documents_and_what_is_known_of_them(build, tmp_path):
    documents = [
        Document(TEXTS[0], "a", title="A title", uri="a.txt", metadata={"year": 1312}),
        TEXTS[1],
        Document(TEXTS[2], "c"),
    ]
    settings = {"k": 5, "lmbda": 0.5, "temperature": 2.0}
    record = {"license": "CC0-1.0", "source": "a town", "skipped": [("x", "not text")]}
    store = build(iter(documents), tmp_path / "s", **settings, **record)
    assert [store.documents[n].id for n in range(3)] == ["a", "1", "c"]
    first = store.documents[0]
    assert (first.title, first.uri, first.metadata) == ("A title", "a.txt", '{"year": 1312}')
    assert store.documents[2].metadata is None
    manifest = store.manifest
    assert (manifest.license, manifest.source, manifest.skipped) == ("CC0-1.0", "a town", 1)
    assert {name: getattr(manifest.settings, name) for name in settings} == settings
    assert manifest.settings.calibrated is False
    assert (manifest.windows.window, manifest.windows.stride) == (256, 128)
    assert manifest.tokens == len(store) + 3


def test_the_canary(model, tokenizer, store):
    checks = store.checks
    tokens = checks[CANARY_TOKENS]
    # The canary is of a fixed text, so that nothing of the corpus has to be forgotten.
    assert tokens.tolist() == canary_tokens(tokenizer, 384).tolist()
    assert len(tokens) == 32
    runs = [
        {tuple(one[place : place + 6]) for place in range(len(one) - 5)}
        for one in (tokens.tolist(), store.tokens.tolist())
    ]
    assert not runs[0] & runs[1]
    keys, _ = naive_keys(model, [[*tokens.tolist(), 0]], 256, 256, "transformer.h.1.mlp", "input")
    np.testing.assert_allclose(checks[CANARY_KEYS], keys, rtol=1e-4, atol=1e-4)


# The same corpus gives the same bytes


@pytest.mark.parametrize(("factory", "concatenate"), [("exact", True), ("IVF4,SQ8", False)])
def test_building_twice_gives_the_same_bytes(build, tmp_path, factory, concatenate):
    settings = {
        "window": SMALL_WINDOW,
        "concatenate": concatenate,
        "batch_tokens": 64,
        "index": IndexConfig(factory),
    }
    for name in ("a", "b"):
        build(TEXTS, tmp_path / name, **settings)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


def test_the_size_of_shards_of_windows_does_not_change_the_keys(
    build, store, tmp_path, monkeypatch, short_training
):
    monkeypatch.setattr("knn_logits.engine.windows._BUFFER_BYTES", 4096)
    seen = []
    again = build(
        TEXTS,
        tmp_path / "s",
        window=WindowConfig(64, 32),
        batch_tokens=32,
        calibrate=True,
        progress=lambda phase, done, total: seen.append((phase, done, total)),
    )
    ids = np.arange(len(store))
    np.testing.assert_allclose(again.keys(ids), store.keys(ids), rtol=2e-3, atol=2e-3)
    steps = [(done, total) for phase, done, total in seen if phase == "keys"]
    assert len(steps) > 3
    assert steps[0] == (0, len(store))
    assert steps[-1] == (len(store), len(store))
    assert steps == sorted(steps)
    phases = list(dict.fromkeys(phase for phase, _, _ in seen))
    gate = ["texts for the gate", "gate"]
    assert phases == ["tokens", "keys", "index exact", *gate]


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_stopped_build_loses_two_fifths_of_its_keys_at_most(
    build, store, tmp_path, monkeypatch, share
):
    monkeypatch.setattr("knn_logits.store.writer._FIRST_BYTES", 512)
    stopped, first = share * len(store), []
    settings = {"window": SMALL_WINDOW, "batch_tokens": 16}
    with pytest.raises(Stop):
        build(TEXTS, tmp_path / "s", **settings, progress=stopping(stopped))
    build(
        TEXTS,
        tmp_path / "s",
        **settings,
        progress=lambda phase, done, _: first.append(done) if phase == "keys" else None,
    )
    assert first[0] >= 0.6 * stopped - 2 * 16


@pytest.mark.parametrize("window", [2, 16])
def test_a_gate_is_fitted_to_windows_as_short_as_its_context(
    build, tmp_path, window, short_training
):
    store = build(TEXTS * 2, tmp_path / "s", window=WindowConfig(window, window), calibrate=True)
    assert store.manifest.gate.kind == "adaptive"


# The model is used, not changed


def test_the_model_is_left_as_it_was(tokenizer, tmp_path, short_training):
    model = make_gpt2()
    model.transformer.h[0].attn.attn_dropout.p = 0.5
    expected = build_datastore(model, tokenizer, TEXTS[:2], tmp_path / "eval")
    model.train()
    before = copy.deepcopy(model.state_dict())
    hooks = sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())
    store = build_datastore(model, tokenizer, TEXTS[:2], tmp_path / "s")
    assert all(one.training for one in model.modules())
    assert hooks == 0
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    ids = np.arange(len(store))
    np.testing.assert_array_equal(store.keys(ids), expected.keys(ids))
    with pytest.raises(CorpusError):
        build_datastore(model, tokenizer, [], tmp_path / "none")
    assert model.training
