"""What a build says beforehand: counts that are exact, sizes that fit, times that are measured."""

import pytest
from conftest import TEXTS

from knn_logits import Document, IndexConfig, WindowConfig
from knn_logits.building import costs
from knn_logits.building.costs import calibration_seconds, recall_seconds
from knn_logits.building.estimate import Estimate, estimate_build, forecast
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.index.backends import backend, usual_kinds

MANY = [f"{number} {text}" for number in range(24) for text in TEXTS]
WINDOW = WindowConfig(64, 32)
GIB = 1 << 30


@pytest.mark.parametrize("concatenate", [False, True])
def test_an_estimate_is_what_comes(model, tokenizer, build, tmp_path, concatenate):
    settings = {"window": WINDOW, "concatenate": concatenate}
    documents = [Document(text, str(number)) for number, text in enumerate(MANY)]
    before = estimate_build(model, tokenizer, [*documents, Document("", "none")], **settings)
    assert not list(tmp_path.iterdir())
    during = []
    store = build(documents, tmp_path / "s", on_estimate=during.append, **settings)
    manifest = store.manifest
    assert manifest.index.factory.startswith("IVF")
    size = sum(path.stat().st_size for path in store.folder.iterdir())
    for estimate in (before, *during):
        assert isinstance(estimate, Estimate)
        assert (estimate.documents, estimate.tokens) == (manifest.documents, manifest.tokens)
        assert estimate.entries == manifest.entries
        assert estimate.bytes == pytest.approx(size, rel=0.05)
        assert estimate.seconds > 0.0
        [need] = estimate.needs
        assert need.chosen
        assert need.index == manifest.index.factory
        assert (need.bytes, need.seconds) == (estimate.bytes, estimate.seconds)
        assert need.milliseconds > 0.0
    assert len(during) == 1


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({}, True),
        ({"lmbda": 0.5}, False),
        ({"calibrate": False}, False),
    ],
)
def test_fitting_a_gate_takes_time(model, tokenizer, monkeypatch, settings, fits):
    monkeypatch.setattr("knn_logits.building.estimate.gate_tokens", lambda _: 1e15)
    estimate = estimate_build(model, tokenizer, MANY, window=WINDOW, **settings)
    assert (estimate.seconds > 1e6) is fits
    number = forecast(1000, model=model, tokenizer=tokenizer, window=WINDOW, **settings)
    assert (number.seconds > 1e6) is fits


def test_a_build_that_is_refused_by_its_estimate_goes_on_later(build, tmp_path):
    def refuses(estimate):
        raise KeyboardInterrupt

    call = {"window": WINDOW, "calibrate": False}
    with pytest.raises(KeyboardInterrupt):
        build(TEXTS, tmp_path / "s", on_estimate=refuses, **call)
    assert not list((tmp_path / "s").glob("keys*"))
    store = build(TEXTS, tmp_path / "s", **call)
    assert store.manifest.documents == len(TEXTS)


@pytest.mark.parametrize(
    ("texts", "settings", "error", "message"),
    [
        ([Document("", "empty")], {}, CorpusError, "no token"),
        ([Document("a", "short")], {}, CorpusError, "two tokens"),
        (TEXTS, {"index": IndexConfig("IVF4096,SQ8")}, ConfigError, "needs at least"),
        (TEXTS, {"source_prefix": "translate: "}, ConfigError, "has no source input"),
        (TEXTS, {"overwrite": True}, ConfigError, "no argument of estimate_build 'overwrite'"),
    ],
)
def test_what_cannot_be_built_is_refused(model, tokenizer, texts, settings, error, message):
    with pytest.raises(error, match=message):
        estimate_build(model, tokenizer, texts, **settings)


def test_machines(tmp_path):
    assert costs.machine_for(5 * GIB, 10**8) == "8 GB of memory, 1 GB of disk"
    assert costs.machine_for(8 * GIB, 3 * 10**12) == "16 GB of memory, 3 TB of disk"
    assert costs.machine_for(2000 * GIB, 25 * 10**12).startswith("5 machines of 512 GB, 25 TB")
    assert costs.gpu_for(30 * GIB) == "48 GB"
    assert costs.gpu_for(300 * GIB) == "5 × 80 GB"
    assert costs.is_enough(GIB, 10, (2 * GIB, 10))
    assert not costs.is_enough(2 * GIB, 10, (2 * GIB, 10))
    assert not costs.is_enough(GIB, 11, (2 * GIB, 10))
    assert min(costs.this_machine(tmp_path / "none" / "such")) > 0


def test_a_search_of_all_keys_is_timed_once_for_all_kinds_of_index(monkeypatch):
    times = iter([0.5])
    monkeypatch.setattr(costs, "fastest", lambda work: next(times))
    # No other test has keys of this length.
    seconds = {recall_seconds(backend(kind, 23, "l2"), 999) for kind in ("IVF8,SQ8", "IVF8,PQ8")}
    assert seconds == {1.2 * 0.5}


def test_steps_that_are_left_out_take_no_time():
    assert recall_seconds(backend("exact", 32, "l2"), 1000) == 0.0
    assert calibration_seconds(255, 1e-3, 2.0, None) == 0.0
    assert calibration_seconds(256, 1e-3, 2.0, None) > 0.0


def test_a_larger_index_takes_longer():
    kind = backend("IVF16,SQ8", 32, "l2")
    small = kind.building_seconds(10_000, None, 1)
    assert kind.building_seconds(10**9, None, 1) > 100 * small


def test_a_number_of_tokens_is_enough(model, tokenizer):
    estimate = forecast(50_000, model=model, tokenizer=tokenizer, window=WINDOW, calibrate=False)
    assert (estimate.tokens, estimate.entries, estimate.dim) == (50_000, 49_999, 32)
    assert [need.index for need in estimate.needs if need.chosen] == [estimate.needs[0].index]
    assert {need.index for need in estimate.needs} == set(usual_kinds(49_999, 32))
    assert all(need.seconds > 0.0 for need in estimate.needs)


def test_neither_a_model_nor_its_layers(monkeypatch):
    # What this machine does meanwhile must not matter.
    monkeypatch.setattr("knn_logits.building.costs.fastest", lambda _: 1e-4)
    monkeypatch.setattr("knn_logits.building.costs.process_bytes", lambda: GIB)
    bare = forecast(10**5, dim=64, compare=False)
    assert bare.seconds is None
    assert bare.needs[0].milliseconds > 0.0
    small, large = (forecast(10**5, dim=64, layers=layers, compare=False) for layers in (1, 400))
    assert large.seconds > small.seconds
    assert large.needs[0].memory - small.needs[0].memory > 300 * 12 * 64 * 64 * 2
    with pytest.raises(ConfigError, match="dim"):
        forecast(10**5)
    with pytest.raises(ConfigError, match="tokens"):
        forecast(1, dim=64)


def test_the_rules_of_a_corpus_and_of_a_number_agree(model, tokenizer):
    counted = estimate_build(model, tokenizer, ["word " * 400], window=WINDOW, compare=True)
    numbered = forecast(counted.tokens, model=model, tokenizer=tokenizer, window=WINDOW)
    assert [need.index for need in counted.needs] == [need.index for need in numbered.needs]
    for need, bare in zip(counted.needs, numbered.needs, strict=True):
        # A corpus has a table of documents as well.
        assert bare.bytes < need.bytes < bare.bytes + 5000
