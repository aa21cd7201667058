"""What a user sets as PyTorch's type of new tensors changes nothing."""

import shutil

import pytest
import torch
from conftest import TEXTS

import knn_logits
from knn_logits import KNNLogitsProcessor, WindowConfig
from knn_logits.building.removing import compact

pytestmark = pytest.mark.usefixtures("short_training")

DOCUMENTS = [f"{TEXTS[n % 8]} And {TEXTS[(n + 3) % 8].lower()} Number {n}." for n in range(8)]


@pytest.fixture(params=["float64", "bfloat16"])
def other_default(request):
    before = torch.get_default_dtype()

    def call(function):
        expected = function()
        torch.set_default_dtype(getattr(torch, request.param))
        try:
            return function(), expected
        finally:
            torch.set_default_dtype(before)

    yield call
    torch.set_default_dtype(before)


@pytest.mark.parametrize("other_default", ["bfloat16"], indirect=True)
def test_a_build_with_its_calibration_is_the_same(build, other_default, tmp_path):
    def built():
        folder = tmp_path / str(torch.get_default_dtype())
        settings = {"window": WindowConfig(64, 32), "calibrate": True}
        return build(DOCUMENTS, folder, **settings).manifest

    one, other = other_default(built)
    assert one == other
    assert one.settings.calibrated


@pytest.mark.parametrize("gate", [None, "meta-k"])
def test_tuning_and_its_gate_are_the_same(evaluate, tune, store, other_default, gate):
    def tuned():
        return tune(store, DOCUMENTS, k=16, gate=gate)

    one, other = other_default(tuned)
    assert (one.k, one.lmbda, one.temperature) == (other.k, other.lmbda, other.temperature)
    assert one.held_out == other.held_out
    if gate is not None:
        assert one.gate.perplexity == pytest.approx(other.gate.perplexity, rel=1e-6)
        measured, expected = other_default(lambda: evaluate(store, TEXTS[:2], lmbda=one.gate.gate))
        assert measured.total == expected.total


def test_all_that_reads_a_datastore_says_the_same(model, tokenizer, store, other_default):
    def seen():
        inputs = tokenizer("The harbour crane", return_tensors="pt")
        with KNNLogitsProcessor(model, store, retomaton=True) as knn:
            output = model.generate(
                **inputs, max_new_tokens=6, do_sample=False, logits_processor=[knn]
            )
            written = knn.trace(output, tokenizer).to_dict()
        explained = knn_logits.explain(model, tokenizer, store, TEXTS[0]).to_dict()
        evaluated = knn_logits.evaluate(model, tokenizer, store, TEXTS[:2], retomaton=True)
        return written, explained, evaluated.total

    one, other = other_default(seen)
    assert one == other


def test_all_that_changes_a_datastore_makes_the_same(
    model, tokenizer, store, other_default, tmp_path
):
    def changed():
        folder = tmp_path / str(torch.get_default_dtype())
        shutil.copytree(store.folder, folder)
        knn_logits.cluster(folder, 4)
        knn_logits.build_index(
            knn_logits.Datastore(folder), knn_logits.IndexConfig("IVF4,SQ8", metric="cosine")
        )
        knn_logits.add_documents(model, tokenizer, folder, [TEXTS[0] + " Once more."])
        knn_logits.remove_documents(folder, "2")
        return compact(folder).manifest

    one, other = other_default(changed)
    assert one == other
