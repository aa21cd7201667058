"""The gate that a build fits: when there is one, its record, its bytes, and what it does."""

import math

import numpy as np
import pytest
import torch
from conftest import TEXTS

from knn_logits import KNNLogitsProcessor, Memory, build_datastore
from knn_logits.mixture.gates.adaptive import AdaptiveGate
from knn_logits.mixture.presets import stored_gate


@pytest.fixture(scope="module")
def gated(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gated") / "store"
    return build_datastore(model, tokenizer, [text * 2 for text in TEXTS], folder)


def test_a_build_fits_a_gate_and_judges_it(gated, model):
    assert isinstance(stored_gate(gated), AdaptiveGate)
    record = gated.manifest.gate
    assert record.kind == "adaptive"
    assert record.tokens > 0
    assert 0.0 <= record.kept <= 1.0
    assert "nats per token" in str(record)
    memory = Memory(model, gated)
    assert isinstance(memory.gate, AdaptiveGate)
    assert memory.gate.control == (0,)


def test_a_document_is_judged_without_itself(model, tokenizer, tmp_path):
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    texts = ["".join(random.choice(letters, 300)) for _ in range(6)]
    record = build_datastore(model, tokenizer, texts, tmp_path / "store").manifest.gate
    # Nothing but the document itself predicts its letters better than their number.
    assert 1.0 < record.gain < math.log(model.config.vocab_size / len(letters))


@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        (TEXTS, {"lmbda": 0.3}),
        (TEXTS, {"calibrate": False}),
        (TEXTS, {"store_keys": False}),
        ([TEXTS[0][:40]], {}),
    ],
    ids=["λ is given", "not calibrated", "keys on demand", "too few entries"],
)
def test_no_gate(model, tokenizer, tmp_path, texts, settings):
    store = build_datastore(model, tokenizer, texts, tmp_path / "store", **settings)
    assert stored_gate(store) is None
    assert store.manifest.gate is None
    assert Memory(model, store).gate is None


def test_a_passage_that_a_text_repeats_is_continued(gated, model, tokenizer):
    ids = torch.tensor([tokenizer(TEXTS[3])["input_ids"][:20]])
    length = ids.shape[1]
    with KNNLogitsProcessor(model, gated) as knn:
        output = model.generate(ids, max_new_tokens=8, do_sample=False, logits_processor=[knn])
        trace = knn.trace(output, tokenizer)
    assert output[0, length:].tolist() == tokenizer(TEXTS[3])["input_ids"][length : length + 8]
    assert all(token.lmbda > 0.5 for token in trace[0].tokens)
    assert trace[0].tokens[0].documents


@pytest.mark.parametrize("share", [0.5, 1.0], ids=["while it reads", "when it has read all"])
def test_an_interrupted_fit_resumes_to_the_bytes_of_the_first_build(
    model, tokenizer, tmp_path, share, short_training
):
    read = []

    def watch(phase, done, total):
        if phase == "gate":
            read.append(done)

    def interrupt(phase, done, total):
        if phase == "gate" and done >= share * total:
            raise KeyboardInterrupt

    texts = [text * 2 for text in TEXTS]
    whole = build_datastore(model, tokenizer, texts, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        build_datastore(model, tokenizer, texts, tmp_path / "store", progress=interrupt)
    torch.manual_seed(5)  # which changes nothing
    store = build_datastore(model, tokenizer, texts, tmp_path / "store", progress=watch)
    assert read[0] > 0.0
    assert store.manifest.gate == whole.manifest.gate
    assert store.manifest.files == whole.manifest.files
