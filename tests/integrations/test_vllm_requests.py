"""What the plugin for vLLM does without vLLM: settings of requests, and the sources it keeps."""

import shutil

import pytest
import torch

from knn_logits import Memory
from knn_logits.errors import ConfigError
from knn_logits.integrations.vllm import sources as kept
from knn_logits.integrations.vllm.requests import Memories, check_request
from knn_logits.integrations.vllm.sources import Sources


def step(memory, rows=1):
    states = torch.zeros(rows, memory.stores[0].manifest.dim)
    scores = torch.zeros(rows, memory.model.config.vocab_size).log_softmax(-1)
    return memory.step(states, torch.tensor([[5, 6, 7]] * rows), scores)[1]


def test_a_request_asks_the_memory_with_its_own_settings(model, store, tmp_path):
    second = shutil.copytree(store.folder, tmp_path / "second")
    memory = Memory(model, {"one": store, "two": second})
    memories = Memories(memory)
    assert memories.of(None) is memories.of({"other": "x"}) is memory
    assert memories.of({"knn": 0, "knn_k": 3}) is None
    asked = memories.of({"knn_k": 3, "knn_lmbda": 0.5, "knn_datastores": ["two"]})
    assert (asked.config.k, asked.config.lmbda, asked.names) == (3, 0.5, ("two",))
    assert memories.of({"knn_datastores": "two", "knn_lmbda": 0.5, "knn_k": 3}) is not memory
    document = store.documents[0].id
    assert memories.of({"knn_exclude": [document]}).config.exclude == (document,)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"knn_lmbda": 3}, "lmbda must lie between 0 and 1"),
        ({"knn_k": 10**6}, "k must"),
        ({"knn_lambda": 0.3}, "'lambda'"),
        ({"knn_exclude": ["nowhere.md"]}, "nowhere.md"),
        ({"knn_datastores": ["nowhere"]}, "no datastore is named 'nowhere'"),
        ({"knn": "yes"}, "knn must be 0 or 1"),
    ],
)
def test_a_wrong_setting_is_refused_before_it_reaches_a_worker(store, extra, words):
    with pytest.raises(ConfigError, match=words):
        check_request(extra, [str(store.folder)])
    check_request(extra, [])  # without a memory the settings are somebody else's


def test_sources_are_kept_for_each_text_of_an_answer(model, tokenizer, store):
    memory = Memory(model, store, k=8, lmbda=0.4)
    sources, vote = Sources(tokenizer), step(memory, rows=3)
    token = int(vote.neighbors.values[0, 0])
    names = ["0_cmpl-1-0-0123abcd", "1_cmpl-1-0-0123abcd", "cmpl-12-0-0123abcd"]
    sources.note(memory, vote, names, torch.tensor([token, -1, token]))
    (text,) = sources.of("cmpl-1")  # a row of -1 got no token, and cmpl-12 is another answer
    (one,) = text["tokens"]
    assert (text["id"], one["token"], one["text"]) == (names[0], token, tokenizer.decode([token]))
    assert one["share"] == pytest.approx(vote.influence(0, token), abs=1e-4)
    assert sum(part["share"] for part in one["documents"]) == pytest.approx(one["share"], abs=1e-3)
    assert sources.of("cmpl-9") == []


def test_old_sources_are_dropped(monkeypatch, model, tokenizer, store):
    monkeypatch.setattr(kept, "_MAX_TOKENS", 6)
    memory = Memory(model, store, k=8)
    sources, vote = Sources(tokenizer), step(memory)
    for name in ["a", "a", "a", "b", "b", "c", "c"]:
        sources.note(memory, vote, [name], torch.tensor([3]))
    assert [len(sources.of(name)) for name in "abc"] == [0, 1, 1]
