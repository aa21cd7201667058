"""A model with its datastores, opened once: what it opens, whom it serves, what it refuses."""

import copy
import pickle

import pytest
import torch
from conftest import TEXTS, make_gpt2
from gate_cases import random_adaptive

import knn_logits
from knn_logits import KNNLogitsProcessor, Memory, explain
from knn_logits.errors import ConfigError
from knn_logits.index import opening
from knn_logits.mixture.vote import log_p_knn_of

PROMPT = "When error code E42 appears, open"


@pytest.fixture
def opened(monkeypatch):
    """How often an index was opened."""
    found, real = [], opening.open_index

    def counted(*args, **settings):
        found.append(args[0])
        return real(*args, **settings)

    monkeypatch.setattr(opening, "open_index", counted)
    return found


def written(model, tokenizer, memory, **settings):
    inputs = tokenizer(PROMPT, return_tensors="pt")
    with KNNLogitsProcessor(model, memory, **settings) as knn:
        output = model.generate(
            **inputs, max_new_tokens=12, do_sample=False, logits_processor=[knn]
        )
        return output.tolist(), knn.trace(output, tokenizer)[0]


def test_everything_that_answers_shares_one_opening(model, tokenizer, store, opened):
    memory = Memory(model, store)
    for _ in range(3):
        written(model, tokenizer, memory)
        explain(model, tokenizer, memory, TEXTS[1])
    knn_logits.evaluate(model, tokenizer, memory, TEXTS[:2])
    knn_logits.tune(model, tokenizer, memory, TEXTS)
    assert opened == [store]


@pytest.mark.parametrize("settings", [{}, {"k": 5, "lmbda": 0.4, "temperature": 2.0}])
def test_an_open_memory_answers_as_one_that_is_opened_for_it(model, tokenizer, store, settings):
    memory = Memory(model, store)
    expected = written(model, tokenizer, store, **settings)
    assert written(model, tokenizer, memory, **settings) == expected
    assert written(model, tokenizer, Memory(model, store, **settings)) == expected
    text = explain(model, tokenizer, store, TEXTS[2], **settings)
    assert explain(model, tokenizer, memory, TEXTS[2], **settings) == text
    assert explain(model, tokenizer, Memory(model, store, **settings), TEXTS[2]) == text


def test_a_memory_serves_other_datastores_of_its_model(model, tokenizer, store, tmp_path, opened):
    other = knn_logits.build_datastore(
        model, tokenizer, TEXTS[:3], tmp_path / "other", k=4, calibrate=False
    )
    memory = Memory(model, store)
    both = memory.over([store, other])
    assert both.stores == [store, other]
    assert opened == [store, other]
    assert written(model, tokenizer, both) == written(model, tokenizer, [store, other])


def test_what_does_not_fit_an_open_memory_is_refused(model, store):
    memory = Memory(model, store)
    with pytest.raises(ConfigError, match="opened with another model"):
        KNNLogitsProcessor(make_gpt2(seed=3), memory)
    with pytest.raises(ConfigError, match="threads cannot be changed on an open memory"):
        KNNLogitsProcessor(model, memory, threads=2)
    with pytest.raises(ConfigError, match="lmbda must lie between"):
        memory.asked(lmbda=1.5)
    with pytest.raises(ConfigError, match="indexes must be an Indexes or None, not str"):
        Memory(model, store, indexes="x")


def test_each_gate_reads_the_text_of_its_own_datastore(model, tokenizer, build, tmp_path):
    stores = [build(TEXTS[:2], tmp_path / "a", k=4), build(TEXTS[5:], tmp_path / "b", k=4)]
    memory = Memory(model, stores, lmbda=random_adaptive())
    ids = tokenizer(TEXTS[0][:40], return_tensors="pt")["input_ids"]
    own, other = memory.neighbors(torch.zeros(1, 1, 32), ids).occurrences
    assert int(own.lengths[0]) == ids.shape[1] > int(other.lengths[0])


def test_the_vote_of_the_latest_step(model, tokenizer, store):
    inputs = tokenizer(PROMPT, return_tensors="pt")
    with KNNLogitsProcessor(model, store, candidates=3) as knn:
        assert knn.vote is None
        output = model.generate(**inputs, max_new_tokens=1, do_sample=False, logits_processor=[knn])
        token = knn.trace(output, tokenizer)[0].tokens[0]
        vote = knn.vote
    assert vote.influence(0, token.token_id) == pytest.approx(token.influence, abs=1e-5)
    assert float(vote.log_p.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    tokens = torch.arange(vote.log_p.shape[1])
    weights = vote.log_weights.expand(len(tokens), -1)
    by_neighbors = log_p_knn_of(weights, vote.neighbors.values.expand(len(tokens), -1), tokens)
    best = vote.log_p[0].topk(3).indices.tolist()
    assert [one.token_id for one in token.candidates if one.token_id in best] == best
    for one in token.candidates:
        assert one.p == pytest.approx(float(vote.log_p[0, one.token_id].exp()), abs=1e-6)
        assert one.p_lm == pytest.approx(float(vote.log_p_lm[0, one.token_id].exp()), abs=1e-6)
        assert one.p_knn == pytest.approx(float(by_neighbors[one.token_id].exp()), abs=1e-6)


def test_a_datastore_is_copied_as_its_folder_and_a_memory_not_at_all(model, store):
    for copied in (copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
        assert copied is not store
        assert copied.folder == store.folder
        assert copied.values.tolist() == store.values.tolist()
    with KNNLogitsProcessor(model, store) as knn:
        for one in (knn, knn.memory):
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                if (one, attempt) == (knn, copy.copy):
                    continue  # a shallow copy of a processor shares its memory
                with pytest.raises(
                    TypeError, match="a Memory or KNNLogitsProcessor is tied to its model"
                ):
                    attempt(one)
