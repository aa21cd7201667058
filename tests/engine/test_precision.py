"""A model runs in half precision where the processor has instructions for it."""

import copy

import pytest
import torch

from knn_logits.engine import forward
from knn_logits.engine.forward import use_fastest_dtype

FLAGS = {"float16": "avx512_fp16", "bfloat16": "avx512_bf16"}


@pytest.fixture
def processor(monkeypatch):
    """Sets the instructions that the processor has."""

    def has(*names):
        found = dict.fromkeys(names, True)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)

    return has


def llama(stored):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().to(getattr(torch, stored))


@pytest.mark.parametrize(("stored", "other"), [("float16", "bfloat16"), ("bfloat16", "float16")])
def test_an_emulated_precision_becomes_float32_with_the_same_weights(processor, stored, other):
    processor("avx2", FLAGS[other])
    model = llama(stored)
    before = copy.deepcopy(model.state_dict())
    assert use_fastest_dtype(model) == (
        "the model runs in float32, since this processor has no instructions for "
        f"{stored}; --dtype chooses"
    )
    for name, weights in model.state_dict().items():
        assert weights.dtype == torch.float32
        assert torch.equal(weights, before[name].float())


@pytest.mark.parametrize(
    ("stored", "flag", "memory"),
    [
        ("float16", "avx512_fp16", 1e12),
        ("bfloat16", "amx_bf16", 1e12),
        ("float16", "avx2", 1000.0),
        ("float32", "avx2", 1e12),
    ],
)
def test_a_model_stays_that_is_fast_or_too_large(processor, monkeypatch, stored, flag, memory):
    processor(flag)
    monkeypatch.setattr(forward, "_memory", lambda: memory)
    model = llama(stored)
    assert use_fastest_dtype(model) is None
    assert model.dtype == getattr(torch, stored)
