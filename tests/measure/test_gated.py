"""Evaluation under a gate: token by token what `explain` and `generate()` give."""

import math

import numpy as np
import pytest
from conftest import TEXTS
from gate_cases import Curve, random_meta_k

from knn_logits import explain
from knn_logits.engine.windows import stream
from knn_logits.measure.bench import open_bench
from knn_logits.measure.perplexity import token_likelihoods

CURVE = Curve("l2", [1.0, 10.0, 25.0, 60.0], [0.95, 0.5, 0.8, 0.05])
TEXT = TEXTS[2] + " " + TEXTS[5][:40]


class Unsure:
    def lmbda(self, neighbors, metric, log_p_lm):
        return 1 - log_p_lm.amax(-1).exp()


GATES = {"distance": CURVE, "meta-k": random_meta_k(ks=(1, 2, 4, 8, 16, 24)), "own": Unsure()}


def scored(model, tokenizer, store, text, **settings):
    """log p of each token of a text but the first, and the searches made for it."""
    ids = tokenizer(text)["input_ids"] if isinstance(text, str) else text
    bench = open_bench(model, tokenizer, store, **settings)
    pieces = stream([np.array(ids, np.int32)], bench.window, bench.stride)
    found, searches = {}, 0
    for batch in token_likelihoods(bench, pieces):
        searches += batch.searches
        found |= dict(zip(batch.places.tolist(), batch.mixed.tolist(), strict=True))
    return [found[place] for place in sorted(found)], searches


@pytest.mark.parametrize("retomaton", [False, True])
@pytest.mark.parametrize("name", GATES)
def test_every_token_has_the_probability_that_explain_gives(
    model, tokenizer, store, name, retomaton
):
    settings = {"lmbda": GATES[name], "k": 24, "temperature": 3.0, "retomaton": retomaton}
    assert len(tokenizer(TEXT)["input_ids"]) <= store.manifest.windows.window
    found, searches = scored(model, tokenizer, store, TEXT, **settings)
    tokens = explain(model, tokenizer, store, TEXT, **settings)[0].tokens
    np.testing.assert_allclose(found, [math.log(token.p) for token in tokens], atol=1e-4)
    ways = [token.retrieval for token in tokens]
    assert searches == ways.count("search") > 0
    assert ("pointers" in ways) == retomaton
