"""What a build says beforehand: counts that are exact, sizes that fit, times that are measured."""

import numpy as np
import pytest
from conftest import TEXTS

from knn_logits import Document, IndexConfig, WindowConfig, build_datastore
from knn_logits.building import sizes, timing
from knn_logits.building.estimate import Estimate, estimate_build, forecast, usual_kinds
from knn_logits.building.sizes import Extent
from knn_logits.building.timing import (
    calibration_seconds,
    index_seconds,
    query_seconds,
    recall_seconds,
)
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.index import plain
from knn_logits.index.faiss_backend import build_faiss

MANY = [f"{number} {text}" for number in range(24) for text in TEXTS]
WINDOW = WindowConfig(64, 32)
GIB = 1 << 30


def extent(entries=10_000, dim=32):
    return Extent(entries, entries + 1, 1, dim, "float16", "l2", table_bytes=0)


@pytest.mark.parametrize("concatenate", [False, True])
def test_an_estimate_is_what_comes(model, tokenizer, tmp_path, concatenate):
    settings = {"window": WINDOW, "concatenate": concatenate}
    documents = [Document(text, str(number)) for number, text in enumerate(MANY)]
    before = estimate_build(model, tokenizer, [*documents, Document("", "none")], **settings)
    assert not list(tmp_path.iterdir())
    during = []
    store = build_datastore(
        model, tokenizer, documents, tmp_path / "s", on_estimate=during.append, **settings
    )
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
        (TEXTS, {"index": IndexConfig("IVF4096,SQ8")}, ConfigError, "learns from at least"),
        (TEXTS, {"source_prefix": "translate: "}, ConfigError, "does not read sources"),
        (TEXTS, {"overwrite": True}, ConfigError, "no argument of estimate_build 'overwrite'"),
    ],
)
def test_what_cannot_be_built_is_refused(model, tokenizer, texts, settings, error, message):
    with pytest.raises(error, match=message):
        estimate_build(model, tokenizer, texts, **settings)


@pytest.mark.parametrize(
    "factory", ["Flat", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ8x4", "PCA16,IVF8,SQ8", "SQ8"]
)
def test_the_size_of_an_index_is_counted_before_it_is_made(factory):
    keys = np.random.default_rng(0).standard_normal((600, 32), dtype=np.float32)
    index = build_faiss(factory, 32, "l2", keys, [keys])
    arrays = plain.to_arrays(index) if plain.has_plain_form(index.raw) else {}
    size = sum(array.nbytes for array in arrays.values())
    assert sizes.index_bytes(IndexConfig(factory), 600, 32, "l2") == pytest.approx(size, rel=0.03)
    if "IVF8," in factory and "PCA" not in factory:
        resident, opening, _ = sizes.memory_bytes(extent(600), factory)
        assert resident == pytest.approx(size + 4 * 600, rel=0.03)
        assert resident < opening


def test_an_exact_index_holds_its_keys_in_float32():
    assert sizes.index_bytes(IndexConfig("exact"), 10**6, 32, "l2") == 0
    assert sizes.memory_bytes(extent(600), "exact")[0] == 600 * (4 * 33 + 4)


def test_learning_may_take_more_memory_than_the_index():
    large, factory = extent(10**9, 4096), "IVF65536,RaBitQ"
    assert sizes.memory_bytes(large, factory)[2] > 2 * 4 * 4096 * 64 * 65536
    small_sample = sizes.memory_bytes(large, factory, train_size=1000)[2]
    assert small_sample < 2 * sizes.store_bytes(large, IndexConfig(factory))


def test_a_gpu_takes_only_some_kinds():
    assert sizes.gpu_bytes(extent(), "IVF64,RaBitQ") is None
    assert sizes.gpu_bytes(extent(), "HNSW32") is None
    for factory in ("exact", "IVF64,SQ8", "IVF64,PQ8", "IVF64,Flat"):
        assert sizes.gpu_bytes(extent(), factory) >= 10_000 * 8


def test_machines(tmp_path):
    assert sizes.machine_for(5 * GIB, 10**8) == "8 GB of memory, 1 GB of disk"
    assert sizes.machine_for(8 * GIB, 3 * 10**12) == "16 GB of memory, 3 TB of disk"
    assert sizes.machine_for(2000 * GIB, 25 * 10**12).startswith("5 machines of 512 GB, 25 TB")
    assert sizes.gpu_for(30 * GIB) == "48 GB"
    assert sizes.gpu_for(300 * GIB) == "5 × 80 GB"
    assert sizes.is_enough(GIB, 10, (2 * GIB, 10))
    assert not sizes.is_enough(2 * GIB, 10, (2 * GIB, 10))
    assert not sizes.is_enough(GIB, 11, (2 * GIB, 10))
    assert min(sizes.this_machine(tmp_path / "none" / "such")) > 0


def test_a_search_of_all_keys_is_timed_once_for_all_kinds_of_index(monkeypatch):
    times = iter([0.5])
    monkeypatch.setattr(timing, "fastest", lambda work: next(times))
    # No other test has keys of this length.
    seconds = {recall_seconds(999, 23, "l2", kind) for kind in ("IVF8,SQ8", "IVF8,PQ8")}
    assert seconds == {1.2 * 0.5}


def test_steps_that_are_left_out_take_no_time():
    assert recall_seconds(1000, 32, "l2", "exact") == 0.0
    assert calibration_seconds(255, 1e-3, 2.0, None) == 0.0
    assert calibration_seconds(256, 1e-3, 2.0, None) > 0.0


def test_a_larger_index_takes_longer():
    small = index_seconds(IndexConfig("IVF16,SQ8"), 10_000, 32, "l2", 1)
    assert index_seconds(IndexConfig("IVF16,SQ8"), 10**9, 32, "l2", 1) > 100 * small


def test_queries_take_longer_in_longer_lists_and_for_more_lists():
    def seconds(entries, nprobe, metric="l2", lists=64):
        factory = f"IVF{lists},SQ8"
        [spent] = query_seconds(factory, entries, 32, metric, k=16, rows=[8], nprobe=nprobe)
        return spent

    assert seconds(10**6, 8) > 3 * seconds(10**4, 8)
    assert seconds(10**6, 32) > seconds(10**6, 1)
    # Lists that are too long for the small index are scaled, and so are lists that are too many.
    assert seconds(10**10, 8) > 100 * seconds(10**7, 8)
    assert seconds(10**5, 1, "ip", 1 << 16) > 3 * seconds(10**5, 1, "ip", 1 << 10)


def test_kinds_without_a_rule_get_no_time():
    assert query_seconds("HNSW32", 1000, 32, "l2", k=4, rows=[1]) is None
    exact = query_seconds("exact", 1000, 32, "cosine", k=4, rows=[1, 8])
    assert len(exact) == 2
    assert min(exact) > 0.0


def test_a_number_of_tokens_is_enough(model, tokenizer):
    estimate = forecast(50_000, model=model, tokenizer=tokenizer, window=WINDOW, calibrate=False)
    assert (estimate.tokens, estimate.entries, estimate.dim) == (50_000, 49_999, 32)
    assert [need.index for need in estimate.needs if need.chosen] == [estimate.needs[0].index]
    assert {need.index for need in estimate.needs} == set(usual_kinds(49_999, 32))
    assert all(need.seconds > 0.0 for need in estimate.needs)


def test_neither_a_model_nor_its_layers(monkeypatch):
    # What this machine does meanwhile must not matter.
    monkeypatch.setattr("knn_logits.building.timing.fastest", lambda _: 1e-4)
    monkeypatch.setattr("knn_logits.building.timing.process_bytes", lambda: GIB)
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
