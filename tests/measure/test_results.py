"""Perplexities, and the bootstrap."""

import json
import math

import numpy as np
import pytest

from knn_logits.measure.results import compared, perplexity


def test_the_interval_holds_the_ratio_and_shrinks_with_more_documents():
    random = np.random.default_rng(0)

    def interval(documents, level):
        of = np.repeat(np.arange(documents), 20)
        gains = random.normal(level, 0.3, documents)[of]
        return compared(gains, of)["interval"], math.exp(-gains.mean())

    (low, high), ratio = interval(10, 0.5)
    assert low < ratio < high
    many, _ = interval(1000, 0.5)
    assert many[1] - many[0] < (high - low) / 3
    assert compared(np.full(20, -math.inf), np.arange(20))["interval"] is None


def test_perplexity_is_none_where_it_is_no_number():
    assert perplexity(2.0, 1.0) == pytest.approx(math.exp(2))
    assert perplexity(math.inf, 3) is None
    assert perplexity(math.nan, 3) is None
    assert perplexity(1e6, 3) is None
    assert perplexity(1.0, 0) is None


def test_tokens_are_drawn_by_document_or_by_block():
    documents = np.repeat(np.arange(12), 100)
    gains = np.random.default_rng(3).normal(0.1, 1.0, 1200)
    by_document = compared(gains, documents)
    assert (by_document["units"], by_document["count"]) == ("documents", 12)
    assert by_document["ratio"] == pytest.approx(math.exp(-gains.mean()))
    by_block = compared(gains, documents // 6)
    assert (by_block["units"], by_block["count"]) == ("blocks of tokens", 2 * -(-600 // 64))
    assert by_block["ratio"] == pytest.approx(by_document["ratio"])
    # Blocks are parts of a document, also where the tokens of documents come in turns.
    turns = np.tile([0, 1], 600)
    apart = compared(np.where(turns == 0, 1.0, -1.0), turns)
    assert apart["interval"][0] < 0.9 < 1.1 < apart["interval"][1]


def test_a_gain_of_every_document_is_certain_and_one_unit_is_not_judged():
    every = compared(np.full(2000, 0.1), np.repeat(np.arange(20), 100))
    assert every["interval"] == pytest.approx((math.exp(-0.1),) * 2)
    one = compared(np.full(60, 0.1), np.zeros(60, np.int64))
    assert one["interval"] is None
    json.dumps(one, allow_nan=False)
