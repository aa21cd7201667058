"""Traces begin with the first token that was generated, and end with the last."""

import pytest
import torch
from mixture_reference import encode

from knn_logits import KNNLogitsProcessor

PROMPTS = ["The harbour crane", "a"]


@pytest.fixture
def knn(model, store):
    with KNNLogitsProcessor(model, store) as processor:
        yield processor


def generate(model, knn, inputs, **settings):
    return model.generate(
        **inputs,
        **{"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0} | settings,
        logits_processor=[knn],
        return_dict_in_generate=True,
    )


@pytest.mark.parametrize("sample", [False, True])
def test_a_row_that_a_stop_string_ended(model, tokenizer, knn, sample):
    inputs = encode(tokenizer, PROMPTS)
    start = inputs["input_ids"].shape[1]
    settings = {"do_sample": sample, "eos_token_id": None, "top_k": 0}
    torch.manual_seed(0)
    free = generate(model, knn, inputs, **settings)
    stop = tokenizer.decode(free.sequences[0, start + 2])
    torch.manual_seed(0)
    output = generate(
        model,
        knn,
        inputs,
        stop_strings=[stop],
        tokenizer=tokenizer,
        **(settings | {"eos_token_id": 0}),
    )
    trace = knn.trace(output, tokenizer)
    written = trace[0].text
    assert stop in written
    assert "<|endoftext|>" not in written
    assert written == tokenizer.decode(free.sequences[0, start : start + len(trace[0].tokens)])
    assert len(trace[0].tokens) <= 3


@pytest.mark.parametrize(
    ("sample", "pad"), [(False, 0), (True, 0), (False, 5), (False, "the end token")]
)
def test_a_row_that_ended_with_a_token_given_at_the_call(model, tokenizer, knn, sample, pad):
    """Padding behind the end token is no part of the row, though it be the same token."""
    inputs = encode(tokenizer, PROMPTS)
    start = inputs["input_ids"].shape[1]
    settings = {"do_sample": sample, "top_k": 0}
    torch.manual_seed(0)
    free = generate(model, knn, inputs, eos_token_id=None, **settings)
    end = int(free.sequences[0, start + 2])
    pad = end if pad == "the end token" else pad
    torch.manual_seed(0)
    output = generate(model, knn, inputs, eos_token_id=end, pad_token_id=pad, **settings)
    tokens = [one.token_id for one in knn.trace(output, tokenizer, pad_token_id=pad)[0].tokens]
    written = free.sequences[0, start:].tolist()
    assert tokens == written[: written.index(end) + 1]
