"""Settings for writing: a sharp vote, along passages, that does not repeat itself."""

import numpy as np
import pytest
import torch
from conftest import TEXTS
from handmade import make_store
from hypothesis import given
from hypothesis import strategies as st

import knn_logits
from knn_logits.building.writing_settings import sharp_temperature, unrepeated_ngram
from knn_logits.measure.tune.result import write_settings


@given(
    st.lists(st.lists(st.floats(0.01, 100.0), min_size=3, max_size=3), min_size=5, max_size=40),
    st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_the_nearest_neighbor_has_nine_tenths_of_a_typical_vote(gaps, scale):
    nearness = -torch.tensor([[0.0, *np.cumsum(row)] for row in gaps]) * scale
    temperature = sharp_temperature(nearness)
    strongest = torch.softmax(nearness.double() / temperature, dim=-1)[:, 0].median()
    assert float(strongest) == pytest.approx(0.9, abs=0.01)


def test_neighbors_that_are_all_equally_near_give_no_temperature():
    assert sharp_temperature(torch.zeros(8, 4)) is None


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


def test_a_build_chooses_for_writing_too(model, tokenizer, tmp_path):
    store = knn_logits.build_datastore(model, tokenizer, TEXTS, tmp_path / "store")
    own = store.manifest.writing
    assert own is not None
    assert own.retomaton
    assert own.temperature > 0
    with knn_logits.KNNLogitsProcessor(model, store) as knn:
        assert knn.config.temperature == own.temperature
        assert knn.config.retomaton
    # Scoring keeps the settings of the papers where the text is too short to choose others.
    assert store.manifest.settings.temperature == 10.0


def test_what_is_given_at_the_build_is_kept(model, tokenizer, tmp_path):
    build = knn_logits.build_datastore
    store = build(model, tokenizer, TEXTS, tmp_path / "some", lmbda=0.3, k=5)
    assert (store.manifest.writing.lmbda, store.manifest.writing.k) == (0.3, 5)
    whole = build(model, tokenizer, TEXTS, tmp_path / "all", lmbda=0.3, k=5, temperature=2.0)
    assert whole.manifest.writing is None
    plain = build(model, tokenizer, TEXTS, tmp_path / "plain", calibrate=False)
    assert plain.manifest.writing is None


def test_another_metric_chooses_the_temperature_anew(build, tmp_path):
    store = build(TEXTS, tmp_path / "store")
    before = store.manifest.writing
    after = knn_logits.build_index(store, knn_logits.IndexConfig("exact", "cosine"))
    assert after.manifest.writing.temperature < before.temperature
    assert after.manifest.writing.k == before.k


def test_text_goes_on_along_the_passage_it_began(model, tokenizer, tmp_path):
    store = knn_logits.build_datastore(model, tokenizer, TEXTS, tmp_path / "store")
    prompt = "When error code E42 appears, open the winch"
    inputs = tokenizer(prompt, return_tensors="pt")
    with knn_logits.KNNLogitsProcessor(model, store) as knn:
        output = model.generate(
            **inputs,
            max_new_tokens=12,
            do_sample=False,
            logits_processor=[knn],
            **knn_logits.generation_settings(store),
        )
    written = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert " cover and clear the cable".startswith(written[:10])
    assert written in TEXTS[1]


def test_a_datastore_of_an_earlier_version_gets_them_with_its_index(build, tmp_path):
    store = build(TEXTS * 4, tmp_path / "store")
    manifest = store.manifest
    assert manifest.settings.calibrated
    manifest.model_copy(update={"writing": None}).write(store.folder)
    old = knn_logits.Datastore(store.folder)
    assert old.manifest.writing is None
    assert knn_logits.build_index(old).manifest.writing == manifest.writing


def test_settings_of_the_users_own_stay_the_only_ones(build, tmp_path):
    given = {"k": 8, "lmbda": 0.4, "temperature": 3.0}
    store = build(TEXTS, tmp_path / "store", **given)
    assert knn_logits.build_index(store).manifest.writing is None
    write_settings(store, 8, 0.5, 2.0)
    assert knn_logits.build_index(store.folder).manifest.writing is None
