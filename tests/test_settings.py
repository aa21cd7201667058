"""Which settings hold: given ones, and a datastore's own of two kinds."""

import pytest
from conftest import TEXTS

import knn_logits
from knn_logits.settings import generation_settings, scoring_settings, writing_settings


@pytest.fixture(scope="module")
def own(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings") / "store"
    return knn_logits.build_datastore(model, tokenizer, TEXTS, folder)


def test_scoring_and_writing_have_settings_of_their_own(own):
    scoring, _ = scoring_settings(own)
    writing, _ = writing_settings(own)
    assert (scoring.k, scoring.temperature, scoring.retomaton) == (1024, 10.0, False)
    record = own.manifest.writing
    assert (writing.k, writing.lmbda, writing.temperature) == (
        record.k,
        record.lmbda,
        record.temperature,
    )
    assert writing.retomaton
    assert generation_settings(own) == {"no_repeat_ngram_size": record.no_repeat_ngram_size}


def test_what_is_given_holds_and_the_rest_is_the_datastores(own):
    config, _ = writing_settings(own, lmbda=0.9)
    assert config.lmbda == 0.9
    assert config.temperature == own.manifest.writing.temperature
    assert not writing_settings(own, retomaton=False)[0].retomaton
    assert writing_settings(own, min_knns=7)[0].min_knns == 7


def test_who_gives_all_three_gets_plain_knn(own):
    config, gate = writing_settings(own, k=8, lmbda=0.25, temperature=10.0)
    assert (config.k, config.lmbda, config.temperature) == (8, 0.25, 10.0)
    assert not config.retomaton
    assert gate is None


def test_a_gate_rules_with_the_settings_for_scoring(own):
    gate = knn_logits.DistanceGate("l2", [1.0, 2.0], [0.5, 0.1])
    config, found = writing_settings(own, lmbda=gate)
    assert found is gate
    assert config.temperature == own.manifest.settings.temperature
    assert not config.retomaton


def test_a_datastore_without_settings_for_writing_writes_with_those_for_scoring(store):
    assert store.manifest.writing is None
    assert b'"writing"' not in store.manifest.to_bytes()
    assert writing_settings(store) == scoring_settings(store)
    assert generation_settings(store) == {}


def test_keys_that_are_not_here_are_not_fetched_for_writing(own, monkeypatch):
    assert writing_settings(own)[0].pointer_distances == "keys"
    monkeypatch.setattr(type(own), "has_keys", property(lambda self: False))
    assert writing_settings(own)[0].pointer_distances == "index"
