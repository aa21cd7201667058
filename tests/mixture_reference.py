"""A plain reference for each token's log-probability in a generated text.

The reference scores the finished sequence in one forward pass without a cache. It searches all keys
and mixes in float64, with NumPy.
"""

import math

import numpy as np
import pytest
import torch
from conftest import make_gpt2

from knn_logits.engine.forward import key_states_and_logits
from knn_logits.engine.location import find_key

K, LMBDA, TEMPERATURE = 64, 0.4, 2.0
PROMPTS = [
    "The harbour crane",
    "Queen Maira founded the town",
    "Each morning the keeper reads",
    "E42",
    "The pump needs oil of grade seven. The crane",
    "In 1312",
    "a",
    "__________",
]


def level(distances):
    """The weights of the nearest neighbors, which sum to one."""
    weights = np.exp(-(distances - distances.min()) / TEMPERATURE)
    return weights / weights.sum()


def by_number(distances, values, log_p_lm):
    """λ of a position, NaN where rounding decides it, and its neighbors' weights."""
    return LMBDA, level(distances)


def reference(model, memory, sequence, mask=None, unconditional=None, guidance=1.0, gate=by_number):
    """Computes λ and log p of each token after the first, float64 [tokens - 1] each."""
    inputs = {"input_ids": sequence[None]}
    if mask is not None:
        inputs["attention_mask"] = mask[None]
        inputs["position_ids"] = (mask.cumsum(0) - 1).clamp(min=0)[None]
    states, logits = key_states_and_logits(model, find_key(model), inputs)
    log_p_lm = torch.log_softmax(logits[0].double(), -1)
    if unconditional is not None:
        ids, first = unconditional
        _, other = key_states_and_logits(model, find_key(model), {"input_ids": ids[None]})
        other = torch.log_softmax(other[0].double(), -1)[first - len(sequence) :]
        mixed = guidance * (log_p_lm[first:] - other) + other
        log_p_lm[first:] = torch.log_softmax(mixed, -1)
    lm = log_p_lm.numpy()
    keys, values = memory
    lmbdas, log_p = [], []
    for place, target in enumerate(sequence[1:].tolist()):
        distances = ((keys - states[0, place].numpy().astype(np.float64)) ** 2).sum(-1)
        nearest = np.argsort(distances, kind="stable")[:K]
        lmbda, weights = gate(distances[nearest], values[nearest], lm[place])
        p_knn = weights[values[nearest] == target].sum()
        lmbdas.append(lmbda)
        log_p.append(np.log(lmbda * p_knn + (1 - lmbda) * np.exp(lm[place, target])))
    return np.array(lmbdas), np.array(log_p)


def make_assistant():
    """A model that agrees with the shared one now and then."""
    assistant = make_gpt2()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return assistant


def used(output, number, start, beams=False):
    """Returns the log-probabilities that generate() used for a sequence's new tokens."""
    out = []
    for step, scores in enumerate(output.scores):
        if start + step >= output.sequences.shape[1]:
            break
        row = int(output.beam_indices[number, step]) if beams else number
        if row < 0:
            break
        token = int(output.sequences[number, start + step])
        out.append(float(torch.log_softmax(scores[row].double(), -1)[token]))
    return np.array(out)


def assert_shares(token):
    """What documents and model had in a token is 1; the documents' part alone is `influence`."""
    mixed = token.lmbda * token.p_knn + (1 - token.lmbda) * token.p_lm
    assert token.p == pytest.approx(mixed, rel=1e-4, abs=1e-7)
    by_documents = math.fsum(one.share for one in token.documents)
    by_model = (1 - token.lmbda) * token.p_lm / token.p
    assert by_documents == pytest.approx(token.influence, abs=1e-6)
    # The model's share is a quotient of numbers in single precision.
    assert by_documents + by_model == pytest.approx(1.0, abs=3e-6)


def check(
    model,
    memory,
    output,
    knn,
    tokenizer,
    start,
    mask=None,
    beams=False,
    guidance=1.0,
    negative=None,
    gate=by_number,
):
    """Checks a generated text and its trace, and returns λ of each token."""
    trace = None if beams else knn.trace(output, tokenizer)
    assert trace is None or len(trace) == len(output.sequences)
    seen = []
    for number, sequence in enumerate(output.sequences):
        got = used(output, number, start, beams)
        length = start + len(got)
        full = None
        if mask is not None:
            new = torch.ones(len(got), dtype=mask.dtype)
            full = torch.cat([mask[number % len(mask)], new])
        branch = {}
        if guidance != 1.0:
            # The other branch saw the negative prompt or the last prompt token, and the new tokens.
            before = sequence[start - 1 : start] if negative is None else negative
            ids = torch.cat([before, sequence[start:length]])
            branch = {"unconditional": (ids, start - 1), "guidance": guidance}
        lmbdas, expected = (
            one[start - 1 :]
            for one in reference(model, memory, sequence[:length], full, **branch, gate=gate)
        )
        clear = ~np.isnan(expected)
        assert clear.mean() > 0.7
        np.testing.assert_allclose(got[clear], expected[clear], atol=1e-4)
        if trace is None:  # beam search is not recorded
            seen += list(lmbdas)
            continue
        tokens = trace[number].tokens
        assert 0 < len(tokens) <= len(got)
        for token, lmbda, log_p in zip(tokens, lmbdas, expected, strict=False):
            assert np.isnan(lmbda) or token.lmbda == pytest.approx(lmbda, abs=1e-4)
            assert np.isnan(log_p) or np.log(token.p) == pytest.approx(log_p, abs=1e-4)
            assert_shares(token)
            seen.append(token.lmbda)
    return seen


def encode(tokenizer, prompts):
    return tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")


SETTINGS = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 20}

in_every_mode = pytest.mark.parametrize(
    ("settings", "rows"),
    [
        pytest.param({}, 2, id="greedy"),
        pytest.param({}, 8, id="batch of 8 with left padding"),
        pytest.param({"use_cache": False}, 3, id="no cache"),
        pytest.param({"do_sample": True, "top_k": 0}, 8, id="sampling"),
        pytest.param(
            {"do_sample": True, "top_k": 0, "num_return_sequences": 3}, 2, id="several returned"
        ),
        pytest.param({"num_beams": 4}, 3, id="beams"),
        pytest.param(
            {"num_beams": 4, "num_return_sequences": 3, "early_stopping": True},
            2,
            id="beams, several returned",
        ),
        pytest.param({"num_beams": 3, "do_sample": True, "top_k": 0}, 2, id="beam sampling"),
        pytest.param({"cache_implementation": "static"}, 2, id="static cache"),
    ],
)


def generate_checked(model, tokenizer, memory, knn, inputs, reference=None, **settings):
    """Writes texts, checks them, and returns the output and λ of each token."""
    settings = {"do_sample": False} | settings
    output = model.generate(**inputs, **SETTINGS, **settings, logits_processor=[knn])
    start = inputs["input_ids"].shape[1]
    mask = inputs["attention_mask"].repeat_interleave(settings.get("num_return_sequences", 1), 0)
    beams = settings.get("num_beams", 1) > 1
    return output, check(
        model, memory, output, knn, tokenizer, start, mask, beams, **(reference or {})
    )
