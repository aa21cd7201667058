"""Which settings hold: given ones, and a datastore's own of two kinds."""

import pytest
from conftest import TEXTS
from gate_cases import Curve

import knn_logits
from knn_logits import ConfigError, KNNLogitsProcessor, Memory
from knn_logits.mixture.presets import generation_settings, resolve_settings


@pytest.fixture(scope="module")
def own(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings") / "store"
    return build(TEXTS, folder)


def test_scoring_and_writing_have_settings_of_their_own(own, model):
    scoring, _ = resolve_settings(own, "scoring")
    writing, _ = resolve_settings(own, "writing")
    assert (scoring.k, scoring.temperature, scoring.retomaton) == (1024, 10.0, False)
    record = own.manifest.writing
    assert (writing.k, writing.lmbda, writing.temperature) == (
        record.k,
        record.lmbda,
        record.temperature,
    )
    assert writing.retomaton
    assert generation_settings(own) == {"no_repeat_ngram_size": 0}
    assert Memory(model, own).loop_size == record.no_repeat_ngram_size
    for preset in ("scoring", "paper"):
        assert Memory(model, own, preset=preset).loop_size is None


def test_what_is_given_holds_and_the_rest_is_the_datastores(own):
    config, _ = resolve_settings(own, "writing", lmbda=0.9)
    assert config.lmbda == 0.9
    assert config.temperature == own.manifest.writing.temperature
    assert not resolve_settings(own, "writing", retomaton=False)[0].retomaton
    assert resolve_settings(own, "writing", min_knns=7)[0].min_knns == 7


@pytest.mark.parametrize("preset", ["writing", "scoring", "paper"])
def test_a_value_that_is_the_stored_one_changes_nothing(own, preset):
    stored, gate = resolve_settings(own, preset)
    again = resolve_settings(
        own, preset, k=stored.k, lmbda=stored.lmbda, temperature=stored.temperature
    )
    assert again == (stored, gate)


def test_all_three_given_still_follow_passages(own):
    config, _ = resolve_settings(own, "writing", k=8, lmbda=0.25, temperature=10.0)
    assert (config.k, config.lmbda, config.temperature) == (8, 0.25, 10.0)
    assert config.retomaton


def test_the_papers_knn_is_asked_for_by_name(own, model):
    weighed = own.manifest.settings.model_copy(update={"suffix_weight": 4.0})
    store = knn_logits.Datastore(own.folder)
    store.manifest = own.manifest.model_copy(update={"settings": weighed})
    config, gate = resolve_settings(store, "paper")
    assert (config.k, config.lmbda, config.temperature) == (1024, 0.25, 10.0)
    assert (config.suffix_weight, config.retomaton, gate) == (1.0, False, None)
    assert Memory(model, store, preset="scoring").config.suffix_weight == 4.0
    assert Memory(model, store).config.retomaton
    assert not Memory(model, store, preset="paper").config.retomaton
    with pytest.raises(
        ConfigError, match="'papers' is unknown: use one of writing, scoring, paper"
    ):
        Memory(model, store, preset="papers")


def test_a_wrong_name_is_answered_with_the_right_one(own, model):
    with pytest.raises(ConfigError, match="no setting 'lamda': write lmbda"):
        KNNLogitsProcessor(model, own, lamda=0.3)
    with pytest.raises(ConfigError, match="no setting of KNNConfig 'lamda': write lmbda"):
        knn_logits.KNNConfig(lamda=0.3)
    with pytest.raises(ConfigError, match="no setting 'colour': the names are check"):
        knn_logits.explain(model, None, own, "a text", colour=1)
    with pytest.raises(ConfigError, match="a gate is an object with a method lmbda"):
        KNNLogitsProcessor(model, own, lmbda=lambda *given: 0.3)


def test_a_processor_outside_a_list_says_where_it_belongs(own, model, ids):
    with KNNLogitsProcessor(model, own) as knn:
        assert knn
        with pytest.raises(ConfigError, match=r"must be a list.*logits_processor=\[knn\]"):
            model.generate(ids, logits_processor=knn, max_new_tokens=2)
        with pytest.raises(ConfigError, match="must be a list"):
            knn.generate(ids, logits_processor=knn, max_new_tokens=2)


def test_a_gate_rules_with_the_settings_for_scoring(own):
    gate = Curve("l2", [1.0, 2.0], [0.5, 0.1])
    config, found = resolve_settings(own, "writing", lmbda=gate)
    assert found is gate
    assert config.temperature == own.manifest.settings.temperature
    assert not config.retomaton


def test_a_datastore_without_settings_for_writing_writes_with_those_for_scoring(store):
    assert store.manifest.writing is None
    assert b'"writing"' not in store.manifest.to_bytes()
    assert resolve_settings(store, "writing") == resolve_settings(store, "scoring")
    assert generation_settings(store) == {}


def test_keys_that_are_not_here_are_not_fetched_for_writing(own, monkeypatch):
    assert resolve_settings(own, "writing")[0].pointer_distances == "keys"
    monkeypatch.setattr(type(own), "has_keys", property(lambda self: False))
    assert resolve_settings(own, "writing")[0].pointer_distances == "index"
