"""What a build says beforehand: counts that are exact, sizes that fit, times that are measured."""

import numpy as np
import pytest
from conftest import TEXTS

from knn_logits import Document, IndexConfig, WindowConfig, build_datastore
from knn_logits.building import timing
from knn_logits.building.estimate import Estimate, estimate_build
from knn_logits.building.sizes import index_bytes
from knn_logits.building.timing import calibration_seconds, index_seconds, recall_seconds
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.index import plain
from knn_logits.index.faiss_backend import build_faiss

MANY = [f"{number} {text}" for number in range(24) for text in TEXTS]


def folder_bytes(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("concatenate", [False, True])
def test_what_is_said_beforehand_is_what_comes(model, tokenizer, tmp_path, concatenate):
    settings = {"window": WindowConfig(64, 32), "concatenate": concatenate}
    documents = [Document(text, str(number)) for number, text in enumerate(MANY)]
    said = estimate_build(model, tokenizer, [*documents, Document("", "none")], **settings)
    assert not list(tmp_path.iterdir())
    during = []
    store = build_datastore(
        model, tokenizer, documents, tmp_path / "s", on_estimate=during.append, **settings
    )
    manifest = store.manifest
    assert manifest.index.factory.startswith("IVF")
    for one in (said, *during):
        assert isinstance(one, Estimate)
        assert (one.documents, one.tokens) == (manifest.documents, manifest.tokens)
        assert one.entries == manifest.entries
        assert one.bytes == pytest.approx(folder_bytes(store.folder), rel=0.05)
        assert one.seconds > 0.0
        [need] = one.needs
        assert need.chosen
        assert need.index == manifest.index.factory
        assert (need.bytes, need.seconds) == (one.bytes, one.seconds)
        assert need.milliseconds > 0.0
    assert len(during) == 1


def test_an_estimate_that_is_too_much_ends_the_build_and_a_later_call_goes_on(
    model, tokenizer, tmp_path
):
    def refuses(estimate):
        raise KeyboardInterrupt

    call = {"window": WindowConfig(64, 32), "calibrate": False}
    with pytest.raises(KeyboardInterrupt):
        build_datastore(model, tokenizer, TEXTS, tmp_path / "s", on_estimate=refuses, **call)
    assert not list((tmp_path / "s").glob("keys*"))
    store = build_datastore(model, tokenizer, TEXTS, tmp_path / "s", **call)
    assert store.manifest.documents == len(TEXTS)


@pytest.mark.parametrize(
    "factory",
    ["Flat", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ8x4", "PCA16,IVF8,SQ8", "SQ8"],
)
def test_the_size_of_an_index_is_known_before_it_is_made(factory):
    keys = np.random.default_rng(0).standard_normal((600, 32), dtype=np.float32)
    index = build_faiss(factory, 32, "l2", keys, [keys])
    arrays = plain.to_arrays(index) if plain.has_plain_form(index.raw) else {}
    size = sum(array.nbytes for array in arrays.values())
    assert index_bytes(IndexConfig(factory), 600, 32, "l2") == pytest.approx(size, rel=0.03)


def test_a_search_of_all_keys_is_timed_once_for_all_kinds_of_index(monkeypatch):
    times = iter([0.5])
    monkeypatch.setattr(timing, "fastest", lambda work: next(times))
    timing._exact_seconds.cache_clear()
    found = {recall_seconds(999, 24, "l2", kind) for kind in ("IVF8,SQ8", "IVF8,PQ8")}
    assert found == {1.2 * 0.5}
    timing._exact_seconds.cache_clear()


def test_nothing_is_expected_of_steps_that_are_left_out():
    assert recall_seconds(1000, 32, "l2", "exact") == 0.0
    assert calibration_seconds(255, "l2", 1e-3, 2.0, None) == 0.0
    assert calibration_seconds(256, "l2", 1e-3, 2.0, None) > 0.0
    assert index_bytes(IndexConfig("exact"), 10**6, 32, "l2") == 0


def test_a_larger_index_is_expected_to_take_longer():
    small = index_seconds(IndexConfig("IVF16,SQ8"), 10_000, 32, "l2", 1)
    assert index_seconds(IndexConfig("IVF16,SQ8"), 10**9, 32, "l2", 1) > 100 * small


def test_what_cannot_be_built_is_refused(model, tokenizer):
    with pytest.raises(CorpusError, match="no token"):
        estimate_build(model, tokenizer, [Document("", "empty")])
    with pytest.raises(CorpusError, match="two tokens"):
        estimate_build(model, tokenizer, [Document("a", "short")])
    with pytest.raises(ConfigError, match="learns from at least"):
        estimate_build(model, tokenizer, TEXTS, index=IndexConfig("IVF4096,SQ8"))
    with pytest.raises(ConfigError, match="does not read sources"):
        estimate_build(model, tokenizer, TEXTS, source_prefix="translate: ")
