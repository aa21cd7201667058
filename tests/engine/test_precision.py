"""A model runs in the precision that is fastest, among those that lose nothing."""

import copy
import time

import pytest
import torch

from knn_logits.engine import forward as precision
from knn_logits.engine.forward import use_fastest_dtype


@pytest.fixture
def timed(monkeypatch):
    """Sets the seconds that each precision takes."""

    def set_to(**seconds):
        monkeypatch.setattr(
            precision, "_seconds", lambda weight: seconds[str(weight.dtype).removeprefix("torch.")]
        )

    return set_to


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_a_slow_half_precision_becomes_float32_with_the_same_weights(timed, stored):
    timed(float32=1.0, **{stored: 3.0})
    model = llama().to(getattr(torch, stored))
    before = copy.deepcopy(model.state_dict())
    choice = use_fastest_dtype(model)
    assert choice == (
        f"the model runs in float32, 3.0 times as fast on this processor as in the checkpoint's "
        f"{stored}; --dtype chooses"
    )
    for name, weights in model.state_dict().items():
        assert weights.dtype == torch.float32
        assert torch.equal(weights, before[name].float())


@pytest.mark.parametrize(
    ("stored", "single", "half", "memory"),
    [
        ("float16", 1.0, 0.5, 1e12),
        ("float16", 1.0, 1.2, 1e12),
        ("float16", 0.0, 1.0, 1000.0),
        ("float32", 0.0, 1.0, 1e12),
    ],
)
def test_a_model_stays_that_is_not_clearly_slower_or_too_large(
    timed, monkeypatch, stored, single, half, memory
):
    timed(float32=single, float16=half)
    monkeypatch.setattr(precision, "_memory", lambda: memory)
    model = llama().to(getattr(torch, stored))
    assert use_fastest_dtype(model) is None
    assert model.dtype == getattr(torch, stored)


def test_the_head_is_not_timed(monkeypatch):
    shapes = []
    monkeypatch.setattr(precision, "_seconds", lambda weight: shapes.append(weight.shape) or 1.0)
    use_fastest_dtype(llama().half())
    assert {tuple(shape) for shape in shapes} <= {(64, 32), (32, 64)}
    assert shapes


def test_waiting_for_a_busy_processor_counts_for_nothing(monkeypatch):
    """The pass in half precision waits for 50 ms, and the other one computes for 2 ms."""
    linear, threads = torch.nn.functional.linear, []

    def slowed(states, weight):
        assert threads[-1] == 1  # another thread would be waited for
        end = time.thread_time() + 0.002
        if weight.dtype == torch.bfloat16:
            time.sleep(0.05)
        while weight.dtype == torch.float32 and time.thread_time() < end:
            pass
        return linear(states, weight)

    monkeypatch.setattr(torch.nn.functional, "linear", slowed)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    assert use_fastest_dtype(llama().bfloat16()) is None
    assert threads == [1, torch.get_num_threads()] * 2
