"""Evaluation under a gate: token by token what `explain` and `generate()` give."""

import math
import shutil

import numpy as np
import pytest
import torch
from conftest import TEXTS
from gate_cases import random_meta_k, random_rescorer

from knn_logits import (
    ConfidenceSkip,
    ConfigError,
    Datastore,
    DistanceGate,
    KNNLogitsProcessor,
    cluster,
    evaluate,
    explain,
)
from knn_logits.engine.windows import stream
from knn_logits.measure.bench import open_bench
from knn_logits.measure.perplexity import token_likelihoods
from knn_logits.search.retriever import Retriever

CURVE = DistanceGate("l2", [1.0, 10.0, 25.0, 60.0], [0.95, 0.5, 0.8, 0.05])
TEXT = TEXTS[2] + " " + TEXTS[5][:40]


class Unsure:
    def lmbda(self, neighbors, metric, log_p_lm):
        return 1 - log_p_lm.amax(-1).exp()


class Every:
    """Searches at tokens whose likeliest follower has an even number."""

    def __init__(self, inner):
        self.inner = inner

    def searches(self, log_p_lm):
        return log_p_lm.argmax(-1) % 2 == 0

    def lmbda(self, neighbors, metric, log_p_lm):
        return self.inner.lmbda(neighbors, metric, log_p_lm)


GATES = {
    "distance": CURVE,
    "meta-k": random_meta_k(ks=(1, 2, 4, 8, 16, 24)),
    # Which of two equally near neighbors comes first is nobody's promise: no eye for ranks.
    "rescorer": random_rescorer(k=16, blind=(2, 3), near_blind=(2,)),
    "own": Unsure(),
    "skips": ConfidenceSkip(CURVE, 0.045),
    "skips, constant": ConfidenceSkip(0.3, 0.045),
    "skips, meta-k": ConfidenceSkip(random_meta_k(), 0.045),
    "skips, rescorer": ConfidenceSkip(random_rescorer(blind=(2, 3), near_blind=(2,)), 0.045),
    "skips by its own rule": Every(Unsure()),
}


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
    assert ("skipped" in ways) == ("skips" in name)
    assert ("pointers" in ways) == retomaton


@pytest.mark.parametrize("name", ["distance", "meta-k", "rescorer", "skips"])
@pytest.mark.parametrize("retomaton", [False, True])
def test_every_token_has_the_probability_that_generation_gives(
    model, tokenizer, store, name, retomaton
):
    settings = {"lmbda": GATES[name], "k": 24, "temperature": 3.0, "retomaton": retomaton}
    inputs = tokenizer("E", return_tensors="pt")  # no prompt that could leave pointers
    with KNNLogitsProcessor(model, store, **settings) as knn:
        output = model.generate(
            **inputs, max_new_tokens=40, do_sample=False, logits_processor=[knn]
        )
        tokens = knn.trace(output, tokenizer)[0].tokens
    found, _ = scored(model, tokenizer, store, output[0].tolist(), **settings)
    expected = [math.log(token.p) for token in tokens]
    np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-4)


def test_what_is_skipped_is_not_searched(model, tokenizer, store, monkeypatch):
    asked = []
    search = Retriever.search

    def counting(self, queries, texts=None):
        asked.append(len(queries))
        return search(self, queries, texts)

    monkeypatch.setattr(Retriever, "search", counting)
    gate = ConfidenceSkip(CURVE, 0.045)
    for retomaton in (False, True):
        asked.clear()
        found = evaluate(model, tokenizer, store, TEXTS, lmbda=gate, retomaton=retomaton)
        assert sum(asked) == found.searches
        assert found.searches_saved == found.total.tokens - found.searches > 0
    asked.clear()
    inputs = tokenizer(TEXTS[:3], return_tensors="pt", padding=True, padding_side="left")
    with KNNLogitsProcessor(model, store, lmbda=gate) as knn:
        output = model.generate(**inputs, max_new_tokens=20, logits_processor=[knn])
        tokens = [token for one in knn.trace(output, tokenizer) for token in one.tokens]
    ways = [token.retrieval for token in tokens]
    assert sum(asked) == ways.count("search")
    assert ways.count("skipped") > 0
    for token in tokens:
        if token.retrieval == "skipped":
            assert (token.lmbda, token.influence, token.neighbors) == (0.0, 0.0, [])
            assert token.p == pytest.approx(token.p_lm)


def test_skipping_everything_is_the_model_and_skipping_nothing_is_the_gate(evaluate, store):
    def total(**settings):
        return evaluate(store, TEXTS, k=24, **settings)

    nothing, everything = total(lmbda=ConfidenceSkip(0.3, 1.0)), total(lmbda=ConfidenceSkip(0.3, 0))
    assert everything.searches == nothing.searches_saved == 0
    lm = everything.total.perplexity
    assert lm.interpolated == pytest.approx(lm.lm, rel=1e-6)
    assert nothing.total.perplexity.interpolated == pytest.approx(
        total(lmbda=0.3).total.perplexity.interpolated, rel=1e-6
    )


@pytest.mark.parametrize("weights", [None, [0.7, 0.3]])
@pytest.mark.parametrize("name", ["skips", "skips, meta-k", "skips, rescorer"])
def test_several_datastores(model, tokenizer, evaluate, store, weights, name):
    settings = {"lmbda": GATES[name], "weights": weights, "k": 16}
    found, searches = scored(model, tokenizer, [store, store], TEXT, **settings)
    tokens = explain(model, tokenizer, [store, store], TEXT, **settings)[0].tokens
    np.testing.assert_allclose(found, [math.log(token.p) for token in tokens], atol=1e-4)
    assert 0 < searches == sum(token.retrieval == "search" for token in tokens) < len(tokens)
    shut = ConfidenceSkip(0.4, 0.0)
    for retomaton in (False, True):
        none = evaluate([store, store], TEXTS, lmbda=shut, weights=weights, retomaton=retomaton)
        assert none.searches == 0


def test_batches_and_clusters_change_nothing(evaluate, store, tmp_path):
    clustered = cluster(Datastore(shutil.copytree(store.folder, tmp_path / "c")), 12)
    settings = {"lmbda": GATES["skips"], "retomaton": True, "k": 16}
    one, other = (evaluate(clustered, TEXTS, batch_tokens=size, **settings) for size in (1, 4096))
    assert (one.searches, one.searches_saved) == (other.searches, other.searches_saved)
    assert one.total.perplexity.interpolated == pytest.approx(
        other.total.perplexity.interpolated, rel=1e-5
    )


def test_mistakes(evaluate, store):
    class Wrong(Unsure):
        def searches(self, log_p_lm):
            return torch.ones(1)

    with pytest.raises(ConfigError, match=r"Wrong.searches must return a bool tensor of shape"):
        evaluate(store, TEXTS, lmbda=Wrong())
    with pytest.raises(ConfigError, match="fitted for the metric cosine"):
        evaluate(store, TEXTS, lmbda=DistanceGate("cosine", [0.5], [0.4]))
    found = evaluate(store, TEXTS, lmbda=GATES["skips"])
    assert found.settings["lmbda"] == "distance, skips by confidence"
