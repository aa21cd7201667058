"""What text like a datastore's finds in it, and which repetitions are loops."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import TEXTS
from handmade import make_store

import knn_logits
from knn_logits import KNNLogitsProcessor, Memory, Trace, explain
from knn_logits.building.nearness import unrepeated_ngram
from knn_logits.engine.forward import key_states_and_logits
from knn_logits.evidence.assemble import with_trust
from knn_logits.evidence.familiarity import Familiarity
from knn_logits.evidence.trace import SequenceTrace, TokenTrace


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


def test_a_build_measures_which_ngram_is_a_loop(model, tokenizer, tmp_path):
    store = knn_logits.build_datastore(model, tokenizer, TEXTS, tmp_path / "store", lmbda=0.3, k=5)
    size = store.manifest.settings.no_repeat_ngram_size
    assert size == unrepeated_ngram(store)
    assert Memory(model, store).loop_size == size
    with KNNLogitsProcessor(model, store) as knn:
        assert knn.loop_size == size
    plain = knn_logits.build_datastore(model, tokenizer, TEXTS, tmp_path / "plain", calibrate=False)
    assert plain.manifest.settings.no_repeat_ngram_size is None
    assert b"no_repeat_ngram_size" not in plain.manifest.to_bytes()
    assert Memory(model, plain).loop_size is None


def test_another_metric_has_a_temperature_of_its_own_scale(build, tmp_path):
    store = build(TEXTS, tmp_path / "store", lmbda=0.3, calibrate=True)
    before = store.manifest.settings
    after = knn_logits.build_index(store, knn_logits.IndexConfig("exact", "cosine"))
    assert after.manifest.settings.temperature < before.temperature
    assert after.manifest.settings.stale
    assert after.manifest.settings.k == before.k
    assert after.manifest.settings.no_repeat_ngram_size == before.no_repeat_ngram_size


# Each text in four documents, which end differently.
MANY = [f"{text} And so it goes on, number {number}." for number in range(4) for text in TEXTS]


@pytest.fixture(scope="module", params=["l2", "cosine"])
def near_store(request, build, tmp_path_factory):
    index = knn_logits.IndexConfig("exact", metric=request.param)
    folder = tmp_path_factory.mktemp("near") / "s"
    return build(MANY, folder, index=index, lmbda=0.8, calibrate=True)


def test_the_limit_is_a_plain_percentile(near_store):
    store = near_store
    keys = torch.from_numpy(store.keys(np.arange(len(store))).astype(np.float32))
    if store.manifest.metric == "l2":
        distances = torch.cdist(keys.double(), keys.double()).square()
    else:
        unit = torch.nn.functional.normalize(keys.double(), dim=-1)
        distances = -(unit @ unit.T)
    tokens = store.contexts.token_of
    document = torch.tensor([store.documents.at_token(tokens(one)) for one in range(len(store))])
    distances[document[:, None] == document[None]] = np.inf
    chosen = np.sort(np.random.default_rng(0).permutation(len(store))[:512])
    nearest = distances.amin(-1)[chosen]
    spread = distances.sort(-1).values[chosen, :64] - nearest[:, None]
    perfect = 0.0 if store.manifest.metric == "l2" else -1.0
    floor = perfect + 0.1 * float(spread[spread.isfinite()].mean())
    expected = max(float(nearest.quantile(0.95)), floor)
    found = store.manifest.near.distance * (1 if store.manifest.metric == "l2" else -1)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_hits_are_counted_as_by_hand(model, tokenizer, near_store):
    text = MANY[9]
    found = explain(model, tokenizer, near_store, text, k=near_store.manifest.entries)[0]
    memory = Memory(model, near_store, k=64)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    states, _ = key_states_and_logits(model, memory.location, inputs)
    neighbors = memory.retriever.search(states[0, :-1])
    values = [set(row.tolist()) for row in neighbors.values]
    by_hand = sum(token in row for token, row in zip(ids[0, 1:].tolist(), values, strict=True))
    assert found.familiarity.places == ids.shape[1] - 1
    assert found.familiarity.hits == by_hand
    assert found.familiarity.expected == near_store.manifest.near.hits > 0.5


def test_a_text_of_the_corpus_is_near_and_noise_is_not(model, tokenizer, near_store):
    noise = tokenizer.decode(torch.randint(10, 380, (60,), generator=torch.manual_seed(0)))
    for text, near in ((MANY[3], True), (noise, False)):
        assert explain(model, tokenizer, near_store, text)[0].near is near
        inputs = tokenizer(text, return_tensors="pt")
        with KNNLogitsProcessor(model, near_store) as knn:
            output = knn.generate(**inputs, max_new_tokens=2, do_sample=False)
            found = knn.trace(output, tokenizer)[0]
        assert found.near is near
        assert found.familiarity.places == 32
        assert all(one.near in (True, False) for one in found.tokens)


def test_rows_of_a_batch_and_beams_know_their_own_prompts(model, tokenizer, near_store):
    noise = tokenizer.decode(torch.randint(10, 380, (40,), generator=torch.manual_seed(1)))
    prompts = [noise, MANY[3][:40]]
    tokenizer.padding_side = "left"
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    with KNNLogitsProcessor(model, near_store) as knn:
        output = knn.generate(
            **batch, max_new_tokens=3, num_beams=2, return_dict_in_generate=True, pad_token_id=0
        )
        found = knn.trace(output, tokenizer)
    assert [one.near for one in found] == [False, True]
    assert found[1].familiarity.places == len(tokenizer(prompts[1])["input_ids"]) - 2


@pytest.mark.parametrize(
    ("hits", "places", "near"),
    [(0, 0, None), (2, 2, None), (0, 3, False), (1, 3, True), (1, 11, True), (6, 12, True),
     (7, 17, True), (6, 17, False), (0, 400, False)],
)  # fmt: skip
def test_what_few_places_say(hits, places, near):
    assert Familiarity(hits, places, 0.6).near is near


@pytest.mark.parametrize(
    ("hits", "named", "near"),
    [
        (1, None, True),
        (1, False, False),
        (1, True, True),
        (2, False, False),
        (3, False, True),
        (0, True, True),
    ],
)
def test_a_short_question_and_an_answer_that_names_nothing_of_it(hits, named, near):
    """A word or two of a question are met by chance."""
    assert Familiarity(hits, 5, 0.6, named=named).near is near


def test_a_small_or_old_datastore_does_not_say(explain, store, near_store):
    assert store.manifest.near is None
    found = explain(store, TEXTS[0])[0]
    assert found.near is found.familiarity is found.tokens[0].near is None
    content = json.loads(near_store.manifest.to_bytes())
    assert content["near"]["distance"] == near_store.manifest.near.distance
    old = near_store.manifest.model_copy(update={"near": None})
    assert b'"near"' not in old.to_bytes()


def test_a_trace_that_was_saved_says_it_again(explain, near_store, tmp_path):
    trace = explain(near_store, MANY[3])
    trace.save(tmp_path / "t.json")
    assert Trace.load(tmp_path / "t.json") == trace
    content = trace.to_dict()
    del content["sequences"][0]["familiarity"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    assert Trace.load(tmp_path / "old.json")[0].near is None


def test_another_index_keeps_the_limit(near_store, tmp_path):
    folder = shutil.copytree(near_store.folder, tmp_path / "s")
    again = knn_logits.build_index(folder, knn_logits.IndexConfig("exact"))
    assert again.manifest.near == near_store.manifest.near


@pytest.mark.parametrize(("influence", "near"), [(0.8, True), (0.3, False)])
def test_a_gate_that_trusts_the_memory_knows_more_than_the_wording(influence, near):
    token = TokenTrace(" hose", 5, 0.9, 0.1, 1.0, influence, influence)
    asked = SequenceTrace("", [token], Familiarity(0, 20, 0.6))
    assert asked.near is False
    assert with_trust(Trace([asked]))[0].near is near
    assert with_trust(Trace([replace(asked, familiarity=None)]))[0].near is None
