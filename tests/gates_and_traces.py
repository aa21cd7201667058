"""Fixtures of copies, gates and traces, which `conftest` offers to all tests."""

import shutil

import pytest


@pytest.fixture
def copied(store, tmp_path):
    """The folder of a copy of the shared datastore, for a test to change."""
    return shutil.copytree(store.folder, tmp_path / "copy")


@pytest.fixture
def pair_copy(pair_store, tmp_path):
    """The folder of a copy of the shared datastore of pairs, for a test to change."""
    return shutil.copytree(pair_store.folder, tmp_path / "copy")


@pytest.fixture
def short_training(monkeypatch):
    """Trains a gate with a tenth of the steps, for tests that only need some gate."""
    from knn_logits.building import gate_fitting
    from knn_logits.mixture.gates import meta_k
    from knn_logits.mixture.gates.gate import trained

    def short(*given, steps, **settings):
        return trained(*given, steps=steps // 10, **settings)

    for module in (gate_fitting, meta_k):
        monkeypatch.setattr(module, "trained", short)


@pytest.fixture
def traced(model, tokenizer, store):
    """A processor with an output of its model, and the trace of it."""
    from knn_logits import KNNLogitsProcessor

    inputs = tokenizer("The harbour crane", return_tensors="pt")
    with KNNLogitsProcessor(model, store, k=16, lmbda=0.9, temperature=0.5) as knn:
        output = model.generate(
            **inputs, max_new_tokens=12, do_sample=False, logits_processor=[knn]
        )
        yield knn, output, knn.trace(output, tokenizer)
