"""Shares of the ∞-gram: the best of each length by a plain search, and what is written."""

import shutil

import numpy as np
import pytest
from conftest import TEXTS

import knn_logits
from knn_logits import ConfigError
from knn_logits.building.indexing import build_suffixes
from knn_logits.measure.tune.infini_gram_shares import (
    _SHARES,
    _Tokens,
    fit_infini_gram,
    fitted,
    mixed,
)
from knn_logits.store.records import InfiniGramRecord

OTHER = [f"{TEXTS[n % 8]} And {TEXTS[(n + 3) % 8].lower()} Number {n}." for n in range(8)]


@pytest.fixture
def store(store, tmp_path):
    return build_suffixes(shutil.copytree(store.folder, tmp_path / "store"))


def some_tokens(counts):
    random = np.random.default_rng(0)
    lengths = np.repeat(list(counts), list(counts.values()))
    n = len(lengths)
    expert = np.where(random.random(n) < 0.5, random.random(n), 0.0)
    return _Tokens(random.random(n), random.random(n) + 1e-3, expert, lengths, np.zeros(n, int))


def test_each_length_has_its_best_share():
    tokens = some_tokens({0: 50, 1: 300, 2: 200, 3: 150, 4: 120, 6: 5, 20: 3})
    record = fitted(tokens.mixed, tokens)
    # Those of 5 tokens and more are few, and taken together with those of 4.
    assert record.lengths == (1, 2, 3, 4)
    for length, share in zip(record.lengths, record.shares, strict=True):
        rows = tokens.lengths >= 4 if length == 4 else tokens.lengths == length
        likely = [
            np.log((1 - one) * tokens.mixed[rows] + one * tokens.expert[rows]).sum()
            for one in _SHARES
        ]
        assert share == _SHARES[int(np.argmax(likely))]
    p = mixed(tokens.mixed, tokens, record)
    assert np.array_equal(p[tokens.lengths == 0], tokens.mixed[tokens.lengths == 0])


def test_perplexities_are_those_of_eval(model, tokenizer, evaluate, store):
    settings = {"k": 8, "lmbda": 0.4, "temperature": 5.0}
    found = fit_infini_gram(model, tokenizer, store, OTHER, allow_overlap=True, **settings)
    assert found.perplexity["with"] < found.perplexity["without"] < found.perplexity["lm"]
    assert found.perplexity["without_knn"] < found.perplexity["lm"]
    forced = fit_infini_gram(
        model, tokenizer, store, OTHER, write=True, force=True, allow_overlap=True, **settings
    )
    assert forced.refused is None
    again = knn_logits.Datastore(store.folder)
    assert again.manifest.infini_gram == found.record
    held_out = [OTHER[number] for number in found.held_out_documents]
    assert 0 < len(held_out) < len(OTHER)
    for share, name in (("auto", "with"), (None, "without")):
        measured = evaluate(again, held_out, allow_overlap=True, infini_gram=share, **settings)
        assert measured.total.tokens == found.held_out
        p = measured.total.perplexity.interpolated
        assert p == pytest.approx(found.perplexity[name], rel=1e-4)


def test_nothing_is_written_without_confidence(model, tokenizer, store):
    found = fit_infini_gram(model, tokenizer, store, OTHER, write=True)
    assert found.refused
    assert knn_logits.Datastore(store.folder).manifest.infini_gram is None
    assert InfiniGramRecord.model_validate(found.to_dict()["infini_gram"]) == found.record


def test_several_are_refused_before_the_model_computes_anything(model, tokenizer, store):
    def asked(*_):
        raise AssertionError("the model was asked")

    handle = model.register_forward_pre_hook(asked)
    try:
        with pytest.raises(ConfigError, match="tune each datastore separately"):
            fit_infini_gram(model, tokenizer, [store, store], OTHER, write=True)
    finally:
        handle.remove()


def test_texts_that_are_held_are_told_of_also_where_nothing_is_written(
    model, tokenizer, store, caplog
):
    found = fit_infini_gram(model, tokenizer, store, TEXTS)
    assert found.overlap.held
    assert found.refused is None
    assert "too large for other text" in caplog.text
    refused = fit_infini_gram(model, tokenizer, store, TEXTS, write=True)
    assert "--allow-overlap" in refused.refused


def test_what_is_not_better_says_how_to_write_it(model, tokenizer, store):
    found = fit_infini_gram(model, tokenizer, store, OTHER[:2], write=True, allow_overlap=True)
    assert "--force" in found.refused
