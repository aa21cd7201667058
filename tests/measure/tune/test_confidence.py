"""Confidence in a choice, by hand and in `tune`."""

import json
import math

import numpy as np
import pytest
from conftest import TEXTS

import knn_logits
from knn_logits.measure.confidence import compared


def verdict(gains, tokens, documents=True):
    """The verdict on units of tokens with equal gains, each a document or a part of one."""
    by_token = np.repeat(np.array(gains) / tokens, tokens)
    numbers = np.repeat(np.arange(len(gains)) * documents, tokens)
    return compared(by_token, numbers, samples=2000, seed=0)


def test_a_gain_of_every_document_is_certain():
    found = verdict([10.0] * 20, [100] * 20)
    assert found.ratio == pytest.approx(math.exp(-0.1))
    assert found.interval == pytest.approx((found.ratio, found.ratio))
    assert (found.better, found.units) == (True, "documents")


def test_a_gain_of_one_document_among_many_is_not():
    found = verdict([200.0, *[-5.0] * 19], [100] * 20)
    assert found.ratio < 1.0 < found.interval[1]
    assert not found.better
    assert "not significantly better than before on 2,000" in found.reason("the choice", "before")


def test_few_tokens_say_little_however_even_they_are():
    assert not verdict([10.0] * 10, [50] * 10).better
    blocks = verdict([10.0] * 30, [64] * 30, documents=False)
    assert blocks.interval[1] < 1.0
    assert not blocks.better
    assert verdict([10.0] * 70, [64] * 70, documents=False).better


def test_one_unit_cannot_be_judged():
    found = verdict([10.0], [60], documents=False)
    assert (found.interval, found.better) == (None, False)
    json.dumps(found.to_dict(), allow_nan=False)


def test_tokens_are_taken_by_document_or_by_block():
    documents = np.repeat(np.arange(12), 100)
    gains = np.random.default_rng(3).normal(0.1, 1.0, 1200)
    by_document = compared(gains, documents, samples=100, seed=0)
    assert (by_document.units, by_document.count) == ("documents", 12)
    assert by_document.ratio == pytest.approx(math.exp(-gains.mean()))
    by_block = compared(gains, documents // 6, samples=100, seed=0)
    assert (by_block.units, by_block.count) == ("blocks of tokens", 2 * -(-600 // 64))
    assert by_block.ratio == pytest.approx(by_document.ratio)
    # Blocks are parts of a document, also where the tokens of documents come in turns.
    turns = np.tile([0, 1], 600)
    apart = compared(np.where(turns == 0, 1.0, -1.0), turns, samples=100, seed=0)
    assert apart.interval[0] < 0.9 < 1.1 < apart.interval[1]


OTHER = [f"{one.upper()} {number} {one[::-1]}" for number in range(6) for one in TEXTS]


def test_a_stored_text_is_not_tuned_on(tune, copied, caplog):
    before = knn_logits.Datastore(copied).manifest
    found = tune(copied, TEXTS, k=8, write=True)
    assert found.overlap.share > 0.9
    assert "in the datastore" in found.refused
    assert "--allow-overlap" in found.refused
    assert not found.written
    assert knn_logits.Datastore(copied).manifest == before
    assert any("worse on other text" in record.message for record in caplog.records)
    assert found.to_dict()["refused"] == found.refused


def test_too_little_text_is_not_written(tune, copied):
    before = knn_logits.Datastore(copied).manifest
    found = tune(copied, OTHER[:10], k=8, write=True)
    assert found.held_out.tokens < 1000
    assert found.overlap.share < 0.2
    assert not found.verdict.better
    assert "--force" in found.refused
    assert knn_logits.Datastore(copied).manifest == before
    forced = tune(copied, OTHER[:10], k=8, write=True, force=True)
    assert (forced.written, forced.refused) == (True, None)
    assert knn_logits.Datastore(copied).manifest.settings.k == forced.k


def test_enough_text_is_written(tune, copied):
    # No neighbor helps on such text, and the settings stored give them four tenths.
    text = [" ".join(OTHER[first : first + 4]) for first in range(0, 44, 2)]
    found = tune(copied, text, k=8, write=True)
    assert found.verdict.units == "documents"
    assert found.held_out.perplexity < found.held_out.before
    assert found.verdict.ratio == pytest.approx(
        found.held_out.perplexity / found.held_out.before, rel=1e-6
    )
    assert found.written, found.refused
    # The same again is the same, which nothing speaks against.
    again = tune(copied, text, k=8, write=True)
    assert again.chosen == found.chosen
    assert again.verdict.ratio == pytest.approx(1.0, abs=1e-6)
    assert not again.verdict.better
    assert again.written, again.refused


def test_a_gate_has_to_be_better_than_the_best_number(tune, copied):
    text = [" ".join(OTHER[first : first + 4]) for first in range(0, 44, 2)]
    found = tune(copied, text, k=16, gate="meta-k", write=True)
    assert found.written == (found.gate.verdict.better and found.verdict.ratio <= 1.0)
    if not found.written:
        assert "the gate " in found.refused
    few = tune(copied, OTHER[:4], k=16, gate="meta-k", write=True)
    assert "the gate " in few.refused


def test_overlap_is_not_looked_for_where_it_is_allowed(evaluate, store, caplog):
    found = evaluate(store, TEXTS)
    assert found.overlap.share > 0.9
    assert found.to_dict()["overlap"]["documents"][0]["id"] in set("01234567")
    assert "results on other text will be worse" in caplog.text
    caplog.clear()
    quiet = evaluate(store, TEXTS, allow_overlap=True)
    assert quiet.overlap is None
    assert not caplog.text
    one = evaluate(store, TEXTS[:1], exclude=["0"])
    assert one.overlap.share < 0.5
    assert evaluate(None, TEXTS).overlap is None
