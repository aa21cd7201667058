"""A token's probability is shared out whole: what all documents did, and what the model did."""

import pytest
import torch
from conftest import TEXTS
from mixture_reference import assert_shares

import knn_logits
from knn_logits import KNNLogitsProcessor, explain

PROMPTS = ["The harbour crane", "In winter the harbour is dark.", "The keeper"]
SETTINGS = {"k": 24, "lmbda": 0.6, "temperature": 2.0}
WRITE = {"max_new_tokens": 10, "return_dict_in_generate": True}


def check(trace):
    tokens = [token for sequence in trace for token in sequence.tokens if token.p is not None]
    for token in tokens:
        assert_shares(token)
    assert any(token.documents for token in tokens)
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


@pytest.mark.parametrize("weights", [None, [0.3, 0.7]])
def test_several_datastores(model, tokenizer, halves, weights):
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    with KNNLogitsProcessor(model, halves, weights=weights, **SETTINGS) as knn:
        output = model.generate(**inputs, **WRITE, do_sample=False, logits_processor=[knn])
        trace = check(knn.trace(output, tokenizer))
    names = {one.store for part in trace for token in part.tokens for one in token.documents}
    assert names == {"first", "second"}
    check(explain(model, tokenizer, halves, TEXTS[5], weights=weights, **SETTINGS))
