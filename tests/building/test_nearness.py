"""Which repetitions are loops, and temperatures of another metric."""

import numpy as np
from conftest import TEXTS
from handmade import make_store

import knn_logits
from knn_logits import KNNLogitsProcessor, Memory
from knn_logits.building.settings_choice import unrepeated_ngram


def test_the_ngram_is_the_shortest_that_the_corpus_hardly_repeats(tmp_path):
    numbers = np.random.default_rng(0)
    # Runs of five tokens come again and again; longer ones do not.
    runs = [numbers.integers(1, 90, 5).tolist() for _ in range(6)]
    repeating = [token for _ in range(400) for token in runs[int(numbers.integers(6))]]
    varied = numbers.integers(1, 90, 2000).tolist()
    assert unrepeated_ngram(make_store(tmp_path / "varied", [varied])) == 4
    found = unrepeated_ngram(make_store(tmp_path / "runs", [repeating]))
    assert found is not None
    assert found > 8
    assert unrepeated_ngram(make_store(tmp_path / "loop", [[1, 2] * 1000])) is None


def test_a_build_measures_which_ngram_is_a_loop(model, tokenizer, tmp_path, short_training):
    store = knn_logits.build_datastore(model, tokenizer, TEXTS, tmp_path / "store", lmbda=0.3, k=5)
    size = store.manifest.settings.no_repeat_ngram_size
    assert size == unrepeated_ngram(store)
    assert Memory(model, store).loop_size == size
    with KNNLogitsProcessor(model, store) as knn:
        assert knn.loop_size == size
    plain = knn_logits.build_datastore(model, tokenizer, TEXTS, tmp_path / "plain", calibrate=False)
    assert plain.manifest.settings.no_repeat_ngram_size is None
    assert Memory(model, plain).loop_size is None


def test_another_metric_has_a_temperature_of_its_own_scale(build, tmp_path, short_training):
    store = build(TEXTS, tmp_path / "store", lmbda=0.3, calibrate=True)
    before = store.manifest.settings
    after = knn_logits.build_index(store, knn_logits.IndexConfig("exact", "cosine"))
    assert after.manifest.settings.temperature < before.temperature
    assert after.manifest.settings.stale
    assert after.manifest.settings.k == before.k
    assert after.manifest.settings.no_repeat_ngram_size == before.no_repeat_ngram_size
