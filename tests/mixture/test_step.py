"""One step of a memory: it reads nothing back from the device, and a CUDA graph changes nothing."""

import os
import warnings
from dataclasses import replace

import pytest
import torch
from gate_cases import random_adaptive

from knn_logits import KNNLogitsProcessor, Memory
from knn_logits.index.compact import CompactIndex
from knn_logits.mixture import step_graphs
from knn_logits.search.neighbors import Prefixes

NEW = 24


def on(memory, device, dtype=torch.float16):
    """Puts an index over a memory's keys, as a GPU has it, on a device."""
    store = memory.stores[0]
    index = CompactIndex(
        lambda: store.key_batches(size=1000),
        len(store),
        store.manifest.dim,
        store.manifest.metric,
        dtype=dtype,
    )
    for name in ("_keys", "_norms", "_mean"):
        setattr(index, name, getattr(index, name).to(device))
    memory.retriever.index = index
    return memory


every_weighing = pytest.mark.parametrize(
    "settings",
    [{"lmbda": 0.3}, {"lmbda": random_adaptive(share=1.0)}, {"lmbda": 0.3, "suffix_weight": 3.0}],
    ids=["constant", "gate", "suffixes"],
)


@every_weighing
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_search_and_mixture_never_wait_for_the_device(model, store, settings, dtype):
    # A tensor without data raises an error wherever a number of it is read.
    memory = on(Memory(model, store, k=8, **settings), "meta", dtype)
    states = torch.empty(3, store.manifest.dim, device="meta")
    log_p_lm = torch.empty(3, model.config.vocab_size, device="meta")
    prefixes = Prefixes.of_steps(torch.tensor([[5, 6, 7, 8]] * 3), 1)
    neighbors = memory.retriever.search(states, prefixes)
    vote = memory.vote(memory.with_occurrences(neighbors, prefixes), log_p_lm)
    assert vote.log_p.device.type == "meta"
    assert vote.log_p.shape == log_p_lm.shape


def gpu_model(model):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU")
    return model.cuda()


@pytest.fixture
def on_gpu(model, monkeypatch):
    # No other thread draws random numbers here.
    monkeypatch.setattr(step_graphs, "_LEAST_TORCH", (2, 0))
    yield gpu_model(model)
    model.cpu()


def check_steps(memory, store, device):
    """Compares steps with searches and votes."""
    size = memory.model.config.vocab_size
    for seed in range(8):
        random = torch.Generator(device).manual_seed(seed)
        state = torch.randn(4, store.manifest.dim, device=device, generator=random)
        scores = torch.randn(4, size, device=device, generator=random)
        ids = torch.randint(1, 200, (4, 9))
        ids[0, -4:] = torch.from_numpy(store.tokens[seed : seed + 4].astype("int64"))
        log_p_lm = scores.log_softmax(-1)
        neighbors, vote = memory.step(state, ids, log_p_lm)
        plain = memory.vote(memory.neighbors(state[:, None], ids), log_p_lm)
        torch.testing.assert_close(vote.log_p, plain.log_p, rtol=1e-5, atol=1e-5)
        assert torch.equal(neighbors.ids, plain.neighbors.ids[:, :8])
        again = memory.vote(neighbors, log_p_lm)
        torch.testing.assert_close(again.log_p, plain.log_p, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@every_weighing
def test_a_replayed_step_is_a_plain_step(on_gpu, store, settings):
    memory = Memory(on_gpu, store, k=8, device="cuda", **settings)
    assert memory.retriever.device is not None
    check_steps(memory, store, "cuda")


@every_weighing
def test_a_step_of_tensors_alone_is_a_plain_step(model, store, settings, monkeypatch):
    monkeypatch.setattr(step_graphs, "_PLAIN_CALLS", 100)
    memory = Memory(model, store, k=8, **settings)
    monkeypatch.setattr(memory, "_replay_device", torch.device("cpu"))
    check_steps(memory, store, "cpu")


@pytest.mark.gpu
@every_weighing
def test_a_generated_step_waits_once(on_gpu, store, settings):
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]], device="cuda")
    arguments = {"max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": 0}
    with KNNLogitsProcessor(on_gpu, store, **settings) as knn:

        def write():
            on_gpu.generate(
                ids, attention_mask=torch.ones_like(ids), logits_processor=[knn], **arguments
            )

        write()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                write()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    own = [one for one in caught if f"{os.sep}knn_logits{os.sep}" in one.filename]
    assert NEW <= len(own) <= NEW + 4


def test_a_step_on_the_cpu_is_a_search_and_a_vote(model, store):
    memory = Memory(model, store, k=8, lmbda=random_adaptive(share=1.0))
    state = torch.randn(2, store.manifest.dim)
    log_p_lm = torch.randn(2, model.config.vocab_size).log_softmax(-1)
    ids = torch.randint(1, 200, (2, 9))
    neighbors, vote = memory.step(state, ids, log_p_lm)
    plain = memory.vote(memory.neighbors(state[:, None], ids), log_p_lm)
    assert torch.equal(vote.log_p, plain.log_p)
    assert torch.equal(neighbors.ids, replace(plain.neighbors).ids[:, :8])


def test_padding_is_no_part_of_a_text(model, store):
    memory = Memory(model, store, k=8, lmbda=random_adaptive(share=1.0), suffix_weight=3.0)
    state = torch.randn(1, store.manifest.dim)
    log_p_lm = torch.randn(1, model.config.vocab_size).log_softmax(-1)
    text = torch.from_numpy(store.tokens[None, 3:7].astype("int64"))
    padding = torch.full((1, 5), model.generation_config.eos_token_id)
    alone, padded = (
        memory.step(state, ids, log_p_lm)[1].log_p for ids in (text, torch.cat([padding, text], -1))
    )
    assert torch.equal(padded, alone)
