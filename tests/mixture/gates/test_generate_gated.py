"""Every decoding mode with a gate: each token's λ and probability against a plain reference.

The reference scores the finished sequence in one forward pass without a cache, searches all keys
in float64 with NumPy, and works the gate out in float64.
"""

import numpy as np
import pytest
import torch
from conftest import TEXTS
from gate_cases import Curve, naive_vote, random_meta_k
from mixture_reference import (
    PROMPTS,
    SETTINGS,
    TEMPERATURE,
    K,
    assert_shares,
    encode,
    generate_checked,
    in_every_mode,
    level,
    make_assistant,
    reference,
)

from knn_logits import KNNLogitsProcessor

# Distances of the nearest neighbors here lie between 0 and 80.
CURVE = ([1.0, 10.0, 25.0, 60.0], [0.95, 0.5, 0.8, 0.05])


class Unsure:
    """λ by the model's highest probability and the number of neighbors closer than 30."""

    def lmbda(self, neighbors, metric, log_p_lm):
        close = (neighbors.distances < 30).float().mean(-1)
        return (1 - log_p_lm.amax(-1).exp()) * (0.2 + 0.7 * close)


# Contexts that occur several times have several nearest neighbors, and which of them is the nearest
# is nobody's promise: so no small sets, and no eye for the nearest one's value.
UNCLEAR = 1e-3
META_K = random_meta_k(ks=(4, 8, 16, 32), seed=23, blind=(2, 3))


def by_distance(distances, values, log_p_lm):
    return np.interp(distances.min(), *CURVE), level(distances)


def by_unsure(distances, values, log_p_lm):
    lmbda = (1 - np.exp(log_p_lm.max())) * (0.2 + 0.7 * (distances < 30).mean())
    return lmbda, level(distances)


def by_neighbors(distances, values, log_p_lm):
    """λ is NaN where rounding decides who belongs to the nearest k."""
    if any(distances[k] - distances[k - 1] < UNCLEAR for k in META_K.ks if k < len(distances)):
        return np.nan, level(distances)
    ids = [0] * len(distances)
    row = (ids, distances.tolist(), values.tolist(), "l2", log_p_lm.tolist())
    lmbda, weights = naive_vote(META_K, *row, TEMPERATURE)
    return lmbda, np.array(weights)


GATES = {
    "distance": (Curve("l2", *CURVE), by_distance),
    "own": (Unsure(), by_unsure),
    "meta-k": (META_K, by_neighbors),
}


@pytest.fixture(params=list(GATES))
def gated(request, model, store):
    """A processor with a gate, and the same gate for the reference."""
    gate, plain = GATES[request.param]
    with KNNLogitsProcessor(model, store, k=K, lmbda=gate, temperature=TEMPERATURE) as knn:
        yield knn, plain


def checked(model, tokenizer, memory, gated, inputs, **settings):
    knn, gate = gated
    output, seen = generate_checked(
        model, tokenizer, memory, knn, inputs, {"gate": gate}, **settings
    )
    # Otherwise a test would say nothing about rows that are mistaken for one another.
    assert max(seen) - min(seen) > 0.1
    return output


@in_every_mode
def test_modes(model, tokenizer, memory, gated, settings, rows):
    torch.manual_seed(3)
    checked(model, tokenizer, memory, gated, encode(tokenizer, PROMPTS[:rows]), **settings)


@pytest.mark.parametrize("how", ["prompt lookup", "assistant"])
def test_assisted_output_is_the_plain_output(model, tokenizer, memory, gated, how):
    inputs = encode(tokenizer, [TEXTS[1] + " When error code"])
    plain = model.generate(**inputs, **SETTINGS, do_sample=False, logits_processor=[gated[0]])
    if how == "assistant":
        settings = {"assistant_model": make_assistant()}
    else:
        settings = {"prompt_lookup_num_tokens": 4}
    output = checked(model, tokenizer, memory, gated, inputs, **settings)
    assert output.sequences.tolist() == plain.sequences.tolist()


def test_explain(model, tokenizer, explain, memory, gated):
    knn, gate = gated
    text = " ".join(TEXTS[2:4])[:120]
    trace = explain(knn.memory.stores, text, k=K, lmbda=knn.gate, temperature=TEMPERATURE)
    ids = torch.tensor(tokenizer(text)["input_ids"])
    window = knn.memory.stores[0].manifest.windows.window
    assert len(ids) <= window
    lmbdas, log_p = reference(model, memory, ids, gate=gate)
    clear, tokens = ~np.isnan(log_p), trace[0].tokens
    for token in tokens:
        assert_shares(token)
    assert clear.mean() > 0.7
    found = np.array([(token.lmbda, np.log(token.p)) for token in tokens])[clear]
    np.testing.assert_allclose(found, np.stack([lmbdas, log_p], -1)[clear], atol=1e-4)
