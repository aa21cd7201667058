"""A plain reference for each token's log-probability in a generated text.

The reference scores the finished sequence in one forward pass without a cache. It searches all keys
and mixes in float64, with NumPy.
"""

import numpy as np
import pytest
import torch

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


def log_p_knn(states, memory, vocabulary):
    keys, values = memory
    out = np.zeros((len(states), vocabulary))
    for row, query in enumerate(states.astype(np.float64)):
        distances = ((keys - query) ** 2).sum(-1)
        nearest = np.argsort(distances, kind="stable")[:K]
        weights = np.exp(-(distances[nearest] - distances[nearest].min()) / TEMPERATURE)
        np.add.at(out[row], values[nearest], weights / weights.sum())
    with np.errstate(divide="ignore"):
        return np.log(out)


def reference(model, memory, sequence, mask=None, unconditional=None, guidance=1.0):
    """Computes log p of each token after the first, float64 [tokens - 1]."""
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
    found = log_p_knn(states[0].numpy(), memory, lm.shape[-1])
    mixture = np.logaddexp(lm + np.log(1 - LMBDA), found + np.log(LMBDA))
    targets = sequence[1:].numpy()
    return mixture[np.arange(len(targets)), targets]


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
):
    trace = knn.trace(output, tokenizer)
    assert len(trace) == len(output.sequences)
    for number, sequence in enumerate(output.sequences):
        got = used(output, number, start, beams)
        assert len(got) > 0
        full = None
        if mask is not None:
            new = torch.ones(len(sequence) - start, dtype=mask.dtype)
            full = torch.cat([mask[number % len(mask)], new])
        length = start + len(got)
        branch = {}
        if guidance != 1.0:
            # The other branch saw the negative prompt or the last prompt token, and the new tokens.
            before = sequence[start - 1 : start] if negative is None else negative
            ids = torch.cat([before, sequence[start:length]])
            branch = {"unconditional": (ids, start - 1), "guidance": guidance}
        expected = reference(
            model, memory, sequence[:length], None if full is None else full[:length], **branch
        )[start - 1 :]
        np.testing.assert_allclose(got, expected, atol=1e-4)
        tokens = trace[number].tokens
        assert 0 < len(tokens) <= len(got)
        for token, log_p in zip(tokens, expected, strict=False):
            assert np.log(token.p) == pytest.approx(log_p, abs=1e-4)
            mixed = LMBDA * token.p_knn + (1 - LMBDA) * token.p_lm
            assert token.p == pytest.approx(mixed, rel=1e-6)
            rest = (1 - token.lmbda) * token.p_lm / token.p
            assert token.influence + rest == pytest.approx(1.0, abs=1e-6)


def encode(tokenizer, prompts):
    return tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")


SETTINGS = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 20}
