"""What a user sets as PyTorch's type of new tensors changes nothing."""

import pytest
import torch
from conftest import TEXTS

import knn_logits
from knn_logits import KNNLogitsProcessor

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
        return written, explained, evaluated.perplexity

    one, other = other_default(seen)
    assert one == other
