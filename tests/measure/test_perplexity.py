"""Perplexity against a plain float64 re-derivation of the paper, and against `generate()`."""

import math

import numpy as np
import pytest
import torch
from conftest import TEXTS, make_gpt2

import knn_logits
from knn_logits.engine.windows import Piece
from knn_logits.errors import ConfigError, CorpusError, MismatchError
from knn_logits.measure.bench import open_bench
from knn_logits.measure.perplexity import token_likelihoods
from knn_logits.measure.text_pass import Text
from knn_logits.settings.config import WindowConfig

OTHER = [
    "The keeper reads the code E42 from the barometer and lights the crane each morning.",
    "Queen Maira lifts twelve crates of oil, grade nine, in the year 1319.",
    "Oldenport had no harbour. " * 30,
]


def naive(model, tokenizer, store, text, settings, window, stride):
    """log p_LM, log p_kNN and log p of each token but the first, in float64 with loops."""
    ids = tokenizer(text)["input_ids"]
    keys = store.keys(np.arange(len(store))).astype(np.float64)
    values = store.values.numpy()
    rows = []
    done, start = 1, 0
    while done < len(ids):
        part = ids[start : start + window]
        with torch.inference_mode():
            seen = []
            module = model.get_submodule("transformer.h.1.mlp")
            handle = module.register_forward_pre_hook(
                lambda _, args, seen=seen: seen.append(args[0])
            )
            logits = model(torch.tensor([part])).logits[0].double().numpy()
            handle.remove()
        for place, (state, scores) in enumerate(zip(seen[0][0], logits, strict=True)):
            token = start + place + 1
            if token < done or token >= len(ids):
                continue
            target = ids[token]
            p_lm = math.exp(scores[target] - scores.max()) / np.exp(scores - scores.max()).sum()
            query = state.double().numpy()
            if store.manifest.metric == "l2":
                nearness = -((keys - query) ** 2).sum(axis=1)
            elif store.manifest.metric == "ip":
                nearness = keys @ query
            else:
                lengths = np.linalg.norm(keys, axis=1) * np.linalg.norm(query)
                nearness = keys @ query / lengths
            nearest = np.argsort(-nearness, kind="stable")[: settings["k"]]
            logit = nearness[nearest] / settings["temperature"]
            weights = np.exp(logit - logit.max())
            p_knn = weights[values[nearest] == target].sum() / weights.sum()
            p = settings["lmbda"] * p_knn + (1 - settings["lmbda"]) * p_lm
            rows.append((math.log(p_lm), math.log(p_knn) if p_knn else -math.inf, math.log(p)))
            done = token + 1
        start += stride
    return np.array(rows)


def scored(model, tokenizer, store, texts, **settings):
    """The same from `token_likelihoods`, in the text's order."""
    bench = open_bench(model, tokenizer, store, **settings)
    text = Text(texts, tokenizer, bench.window, bench.stride, concatenate=bench.concatenate)
    found = {}
    for batch in token_likelihoods(bench, text.pieces()):
        for row, place in enumerate(batch.places.tolist()):
            assert place not in found
            found[place] = [float(one[row]) for one in (batch.lm, batch.knn, batch.mixed)]
    return np.array([found[place] for place in sorted(found)])


@pytest.fixture(scope="module")
def stores(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    return {
        metric: build(
            TEXTS,
            folder / metric,
            window=WindowConfig(64, 32),
            index=knn_logits.IndexConfig("exact", metric),
            k=12,
            lmbda=0.4,
            temperature=temperature,
        )
        for metric, temperature in (("l2", 3.0), ("ip", 2.0), ("cosine", 0.05))
    }


@pytest.mark.parametrize(
    ("metric", "window", "stride"),
    [("l2", 64, 64), ("l2", 16, 5), ("ip", 64, 32), ("cosine", 64, 32)],
)
def test_against_a_plain_rederivation(model, tokenizer, evaluate, stores, metric, window, stride):
    store = stores[metric]
    settings = {name: getattr(store.manifest.settings, name) for name in ("k", "lmbda")}
    settings["temperature"] = store.manifest.settings.temperature
    expected = np.concatenate(
        [naive(model, tokenizer, store, text, settings, window, stride) for text in OTHER]
    )
    found = scored(
        model, tokenizer, store, OTHER, window=WindowConfig(window, stride), batch_tokens=150
    )
    assert found.shape == expected.shape
    np.testing.assert_allclose(found[:, [0, 2]], expected[:, [0, 2]], atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(found[:, 1] > -np.inf, expected[:, 1] > -np.inf)
    near = expected[:, 1] > -15  # far below, rounding of distances shows
    np.testing.assert_allclose(found[near, 1], expected[near, 1], atol=1e-4)

    result = evaluate(store, OTHER, window=WindowConfig(window, stride), batch_tokens=64)
    lm, _, mixed = expected.T
    assert result.tokens == len(expected)
    assert result.perplexity.lm == pytest.approx(np.exp(-lm.mean()), rel=1e-5)
    assert result.perplexity.interpolated == pytest.approx(np.exp(-mixed.mean()), rel=1e-5)
    assert result.perplexity.knn is None


def test_the_mixture_is_what_generate_continued_with(model, tokenizer, store):
    prompt = tokenizer("When error code E42", return_tensors="pt")
    with knn_logits.KNNLogitsProcessor(model, store) as knn:
        output = model.generate(
            **prompt,
            logits_processor=[knn],
            do_sample=True,
            top_k=0,
            max_new_tokens=40,
            min_new_tokens=40,
            eos_token_id=[],
            return_dict_in_generate=True,
            output_scores=True,
        )
    length = prompt["input_ids"].shape[1]
    new = output.sequences[0, length:]
    used = [float(torch.log_softmax(s[0], -1)[t]) for s, t in zip(output.scores, new, strict=True)]

    bench = open_bench(model, tokenizer, store, window=WindowConfig(128, 64))
    piece = Piece(output.sequences[0].numpy().astype(np.int32), 0, 0)
    (batch,) = token_likelihoods(bench, [piece])
    np.testing.assert_allclose(batch.mixed[length - 1 :].numpy(), used, atol=1e-4)


def test_nothing_changes_with_batches(evaluate, store):
    whole, small = (evaluate(store, OTHER, batch_tokens=tokens) for tokens in (None, 1))
    assert small.perplexity.interpolated == pytest.approx(whole.perplexity.interpolated, rel=1e-6)
    assert (small.documents, small.tokens) == (3, whole.tokens)
    assert small.interval == pytest.approx(whole.interval)
    assert small.searches == whole.searches == whole.tokens
    assert whole.searches_saved == 0


def test_concatenated_documents_are_one_stream(model, tokenizer, store):
    joined = scored(model, tokenizer, store, OTHER, concatenate=True)
    ids = [one for text in OTHER for one in tokenizer(text)["input_ids"]]
    assert len(joined) == len(ids) - 1
    whole = knn_logits.evaluate(model, tokenizer, store, OTHER, concatenate=True)
    assert whole.tokens == len(joined)
    assert whole.documents == 3
    assert whole.perplexity.lm == pytest.approx(np.exp(-joined[:, 0].mean()), rel=1e-5)
    assert whole.settings["concatenate"] is True


def test_without_a_datastore_the_model_alone_is_measured(evaluate, store):
    window = WindowConfig(64, 32)
    alone = evaluate(None, OTHER, window=window)
    both = evaluate(store, OTHER, window=window)
    assert alone.perplexity.lm == pytest.approx(both.perplexity.lm, rel=1e-6)
    assert alone.perplexity.interpolated is None
    assert (alone.searches, alone.interval) == (0, None)


def test_lmbda_0_and_1(evaluate, store):
    none = evaluate(store, OTHER, lmbda=0.0).perplexity
    assert none.interpolated == pytest.approx(none.lm, rel=1e-6)
    everything = evaluate(store, OTHER, lmbda=1.0)
    assert everything.perplexity.interpolated is None  # a token without a vote is impossible
    assert everything.interval is None


@pytest.mark.parametrize("texts", [[], [""], ["a"]])
def test_a_text_without_two_tokens_is_refused(evaluate, store, texts):
    with pytest.raises(CorpusError, match="use a longer text"):
        evaluate(store, texts)


def test_what_does_not_belong_together_is_refused(model, tokenizer, store):
    with pytest.raises(ConfigError, match="window 1000"):
        knn_logits.evaluate(model, tokenizer, store, OTHER, window=WindowConfig(1000))
    with pytest.raises(ConfigError, match="stride 65"):
        knn_logits.evaluate(model, tokenizer, store, OTHER, window=WindowConfig(stride=65))
    with pytest.raises(MismatchError):
        knn_logits.evaluate(make_gpt2(seed=5), tokenizer, store, OTHER)


def test_the_model_is_left_as_it_was(model, tokenizer, store):
    model.train()
    try:
        knn_logits.evaluate(model, tokenizer, store, OTHER)
        assert model.training
    finally:
        model.eval()
    assert not any(module._forward_pre_hooks for module in model.modules())
