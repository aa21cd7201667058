"""Settings chosen on one part of a text, and what they are worth on another."""

import json

import numpy as np
import pytest
from conftest import TEXTS
from full_disk import tried_on_full_disks
from tuned import write_settings

import knn_logits
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.measure.text_pass import Text
from knn_logits.measure.tune.halves import Division

DOCUMENTS = [
    f"{TEXTS[n % 8]} And {TEXTS[(n + 3) % 8].lower()} Number {n}." * (1 + n % 3) for n in range(9)
]


@pytest.fixture(scope="module")
def result(tune, store):
    return tune(store, DOCUMENTS, k=64)


def halves_of(tokenizer, documents):
    """The documents of both halves, as `tune` divides them."""
    text = Text("t", documents, tokenizer, 64, 32)
    places = [piece.first + 1 for piece in text.pieces() if piece.skip == 0]
    second = Division(text, None).second(np.array(places))
    return (
        [one for one, held in zip(documents, second, strict=True) if not held],
        [one for one, held in zip(documents, second, strict=True) if held],
    )


def test_both_halves_are_whole_documents_of_like_size(tokenizer, result):
    one, other = halves_of(tokenizer, DOCUMENTS)
    assert len(one) + len(other) == len(DOCUMENTS)
    assert (result.chosen_on.documents, result.held_out.documents) == (len(one), len(other))
    longest = max(len(tokenizer(text)["input_ids"]) for text in DOCUMENTS)
    assert abs(result.chosen_on.tokens - result.held_out.tokens) <= longest


def test_both_parts_have_the_perplexity_that_evaluate_gives(tokenizer, evaluate, store, result):
    for part, documents in zip(
        (result.chosen_on, result.held_out), halves_of(tokenizer, DOCUMENTS), strict=True
    ):
        found = evaluate(
            store, documents, k=result.k, lmbda=result.lmbda, temperature=result.temperature
        )
        assert found.total.tokens == part.tokens
        assert found.total.perplexity.lm == pytest.approx(part.lm, rel=1e-5)
        assert found.total.perplexity.interpolated == pytest.approx(part.perplexity, rel=1e-4)
        own = evaluate(store, documents)
        assert own.total.perplexity.interpolated == pytest.approx(part.before, rel=1e-4)


def test_nothing_tried_is_better_than_the_choice(model, tokenizer, store, result):
    assert result.chosen_on.perplexity <= result.chosen_on.before
    documents, _ = halves_of(tokenizer, DOCUMENTS)
    for change in ({"k": 8}, {"lmbda": 0.2}, {"temperature": 2.0}):
        settings = {"k": result.k, "lmbda": result.lmbda, "temperature": result.temperature}
        other = knn_logits.evaluate(model, tokenizer, store, documents, **(settings | change))
        assert other.total.perplexity.interpolated >= result.chosen_on.perplexity * 0.9999


def test_the_result_is_json(result):
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["settings_tried"] == result.grid.settings > 1000
    assert content["perplexity"] == result.held_out.perplexity


def test_batches_change_nothing(tune, store, result):
    small = tune(store, {"a": DOCUMENTS[:4], "b": DOCUMENTS[4:]}, k=64, batch_tokens=1)
    assert (small.k, small.lmbda) == (result.k, result.lmbda)
    assert small.held_out.tokens == result.held_out.tokens
    assert small.held_out.lm == pytest.approx(result.held_out.lm, rel=1e-6)


def test_no_k_is_claimed_that_was_not_searched(tune, store):
    found = tune(store, DOCUMENTS, k=6)
    assert found.grid.ks == (1, 2, 4, 6)  # the datastore's own is 16
    same = tune(store, DOCUMENTS, k=24)
    assert found.grid.ks[-1] == 6
    assert 16 in same.grid.ks


def test_a_single_document_is_cut_in_the_middle(tune, store):
    found = tune(store, [" ".join(DOCUMENTS)], k=16)
    assert (found.chosen_on.documents, found.held_out.documents) == (1, 1)
    assert abs(found.chosen_on.tokens - found.held_out.tokens) <= 1


@pytest.mark.parametrize("documents", [[], ["a"], ["ab"], ["The harbour", "x"]])
def test_too_little_text_is_refused(tune, store, documents):
    with pytest.raises(CorpusError, match="dozens of documents"):
        tune(store, documents, k=4)


def test_the_choice_can_be_written(tune, copied):
    found = tune(copied, DOCUMENTS, k=32, write=True, force=True)
    settings = knn_logits.Datastore(copied).manifest.settings
    assert settings.calibrated
    assert (settings.k, settings.lmbda, settings.temperature) == (
        found.k,
        found.lmbda,
        found.temperature,
    )
    again = tune(copied, DOCUMENTS, k=32)
    assert again.held_out.before == pytest.approx(found.held_out.perplexity, rel=1e-4)
    write_settings(knn_logits.Datastore(copied), 3, 0.5, 2.0)
    assert knn_logits.Datastore(copied).manifest.settings.k == 3


def test_what_cannot_be_tuned_is_refused(tune, store):
    with pytest.raises(ConfigError, match="no datastore"):
        tune([], DOCUMENTS)
    with pytest.raises(ConfigError, match="each datastore separately"):
        tune([store, store], DOCUMENTS)
    with pytest.raises(ConfigError, match="k must be"):
        tune(store, DOCUMENTS, k=-1)


@pytest.mark.parametrize("keep_gate", [False, True])
def test_a_full_disk_is_said_only_if_nothing_was_stored(tmp_path, monkeypatch, keep_gate):
    """The disk may be full when the new manifest is in its place already."""

    def change(store):
        write_settings(store, 3, 0.125, 2.0, keep_gate=keep_gate)

    tried = tried_on_full_disks(tmp_path, monkeypatch, change)
    for store, failed in tried:
        assert (store.manifest.settings.lmbda != 0.125) is failed
    assert {failed for _, failed in tried} == {True, False}
