"""A token's probability is shared out whole: what all documents did, and what the model did."""

import math

import pytest
import torch
from conftest import TEXTS
from gate_cases import random_meta_k, random_rescorer

import knn_logits
from knn_logits import (
    ConfidenceSkip,
    DistanceGate,
    KNNLogitsProcessor,
    explain,
)

PROMPTS = ["The harbour crane", "In winter the harbour is dark.", "The keeper"]
SETTINGS = {"k": 24, "lmbda": 0.6, "temperature": 2.0}
WRITE = {"max_new_tokens": 10, "return_dict_in_generate": True}


def check(trace):
    """Documents and model together are 1; the documents alone are `influence`."""
    seen = 0
    for sequence in trace:
        for token in sequence.tokens:
            if token.p is None:
                continue
            assert token.p == pytest.approx(
                token.lmbda * token.p_knn + (1 - token.lmbda) * token.p_lm, rel=1e-4, abs=1e-7
            )
            by_documents = math.fsum(one.share for one in token.documents)
            by_model = (1 - token.lmbda) * token.p_lm / token.p
            assert by_documents == pytest.approx(token.influence, abs=1e-6)
            # The model's share is a quotient of numbers in single precision.
            assert by_documents + by_model == pytest.approx(1.0, abs=3e-6)
            seen += bool(token.documents)
    assert seen
    return trace


@pytest.fixture(scope="module")
def halves(build, tmp_path_factory):
    """Two datastores that hold half of the texts each."""
    room = tmp_path_factory.mktemp("halves")
    return [
        build(TEXTS[part], room / name, index=knn_logits.IndexConfig("exact"))
        for name, part in (("first", slice(0, 4)), ("second", slice(4, 8)))
    ]


MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 0},
    "several sequences": {"do_sample": True, "top_k": 0, "num_return_sequences": 2},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "beam sampling": {"do_sample": True, "num_beams": 2},
    "prompt lookup": {"do_sample": False, "prompt_lookup_num_tokens": 3},
    "penalties": {"do_sample": False, "repetition_penalty": 1.3, "bad_words_ids": [[260]]},
}


@pytest.mark.parametrize("retomaton", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode(model, tokenizer, store, mode, retomaton):
    torch.manual_seed(0)
    prompts = PROMPTS[:1] if mode == "prompt lookup" else PROMPTS
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    with KNNLogitsProcessor(model, store, retomaton=retomaton, **SETTINGS) as knn:
        output = model.generate(**inputs, **WRITE, **MODES[mode], logits_processor=[knn])
        check(knn.trace(output, tokenizer))


@pytest.mark.parametrize("sampled", [False, True])
def test_drafts(model, tokenizer, store, sampled):
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    with KNNLogitsProcessor(model, store, **SETTINGS) as knn:
        output = knn.generate(**inputs, **WRITE, do_sample=sampled)
        check(knn.trace(output, tokenizer))


CURVE = DistanceGate("l2", [1.0, 10.0, 25.0, 60.0], [0.95, 0.5, 0.8, 0.05])


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param(CURVE, id="distance"),
        pytest.param(random_meta_k(), id="meta-k"),
        pytest.param(random_rescorer(), id="rescorer"),
        pytest.param(ConfidenceSkip(0.6, 0.045), id="skips"),
        pytest.param(ConfidenceSkip(random_meta_k(), 0.045), id="skips, meta-k"),
    ],
)
def test_every_gate(model, tokenizer, store, gate):
    given = SETTINGS | {"lmbda": gate}
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    with KNNLogitsProcessor(model, store, **given) as knn:
        output = model.generate(**inputs, **WRITE, do_sample=False, logits_processor=[knn])
        check(knn.trace(output, tokenizer))
    check(explain(model, tokenizer, store, TEXTS[1], **given))


@pytest.mark.parametrize("weights", [None, [0.3, 0.7]])
def test_several_datastores(model, tokenizer, halves, weights):
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    with KNNLogitsProcessor(model, halves, weights=weights, **SETTINGS) as knn:
        output = model.generate(**inputs, **WRITE, do_sample=False, logits_processor=[knn])
        trace = check(knn.trace(output, tokenizer))
    names = {one.store for part in trace for token in part.tokens for one in token.documents}
    assert names == {"first", "second"}
    check(explain(model, tokenizer, halves, TEXTS[5], weights=weights, **SETTINGS))
