"""Which settings hold: given ones, a datastore's own with its gate, or the papers' kNN-LM."""

import shutil

import pytest
from conftest import TEXTS
from gate_cases import Curve, random_adaptive
from tuned import write_settings

import knn_logits
from knn_logits import KNNLogitsProcessor, Memory
from knn_logits.building import builder
from knn_logits.errors import ConfigError
from knn_logits.mixture.gates.adaptive import AdaptiveGate
from knn_logits.mixture.presets import generation_settings, resolve_settings


@pytest.fixture(scope="module")
def own(build, tmp_path_factory):
    """A datastore with settings of its own and without a gate."""
    folder = tmp_path_factory.mktemp("settings") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "write_gate", lambda *_: None)
        return build(TEXTS, folder, calibrate=True)


@pytest.fixture(scope="module")
def gated(own, tmp_path_factory):
    """The same datastore with a gate."""
    folder = shutil.copytree(own.folder, tmp_path_factory.mktemp("gated") / "store")
    store = knn_logits.Datastore(folder)
    write_settings(store, 1024, 0.25, 10.0, random_adaptive(), suffix_weight=4.0)
    return knn_logits.Datastore(folder)


def test_the_datastores_settings_hold(own, model):
    config, gate = resolve_settings(own)
    record = own.manifest.settings
    assert (config.k, config.lmbda, config.temperature) == (1024, 0.25, 10.0)
    assert (record.k, record.lmbda, record.temperature) == (1024, 0.25, 10.0)
    assert not config.retomaton
    assert gate is None
    assert resolve_settings(own, preset="default") == (config, gate)
    assert generation_settings(own) == {"no_repeat_ngram_size": 0}
    for preset in (None, "default", "paper"):
        assert Memory(model, own, preset=preset).loop_size == record.no_repeat_ngram_size == 8


def test_the_papers_knn_is_asked_for_by_name(gated, model):
    config, gate = resolve_settings(gated, preset="paper")
    assert (config.k, config.lmbda, config.temperature) == (1024, 0.25, 10.0)
    assert (config.suffix_weight, config.retomaton, gate) == (1.0, False, None)
    config, gate = resolve_settings(gated)
    assert config.suffix_weight == 4.0
    assert isinstance(gate, AdaptiveGate)
    memory = Memory(model, gated, preset="paper")
    assert (memory.gate, memory.experts) == (None, ())
    with pytest.raises(ConfigError, match="'papers' is unknown: use one of default, paper"):
        Memory(model, gated, preset="papers")


def test_a_number_or_a_gate_that_is_given_takes_the_place_of_the_stored_gate(gated):
    for preset in (None, "default", "paper"):
        config, gate = resolve_settings(gated, preset=preset, lmbda=0.25)
        assert (config.lmbda, gate) == (0.25, None)
        given = Curve("l2", [1.0, 2.0], [0.5, 0.1])
        assert resolve_settings(gated, preset=preset, lmbda=given)[1] is given


def test_a_wrong_name_is_answered_with_the_right_one(own, model):
    with pytest.raises(ConfigError, match="no setting 'lamda': write lmbda"):
        KNNLogitsProcessor(model, own, lamda=0.3)
    with pytest.raises(ConfigError, match="no setting 'colour': the names are check"):
        knn_logits.explain(model, None, own, "a text", colour=1)
    with pytest.raises(ConfigError, match="lmbda must be a finite number"):
        KNNLogitsProcessor(model, own, lmbda=lambda *given: 0.3)
    with pytest.raises(ConfigError, match=r"the class Curve: use an object, Curve\(\)"):
        KNNLogitsProcessor(model, own, lmbda=Curve)


def test_a_datastore_without_a_size_of_loops_changes_no_generation(store):
    assert store.manifest.settings.no_repeat_ngram_size is None
    assert generation_settings(store) == {}
