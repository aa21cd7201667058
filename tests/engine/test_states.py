"""The states that the hooks keep: each call finds the one that its scores came from."""

import pytest
import torch
from hooked import all_states, attach, close, found, greedy, run, some_ids
from transformers import DynamicCache, MiniMaxConfig, MiniMaxForCausalLM

from knn_logits.engine.hooks import StateCapture
from knn_logits.engine.location import find_key

# Which states a call is about


@pytest.fixture
def capture(mine):
    capture = StateCapture(mine, find_key(mine))
    yield capture
    capture.close()


def test_a_call_before_any_forward_pass_has_no_states(mine, store, capture, ids):
    assert capture.find(ids) is None
    scores = torch.randn(1, 384)
    with attach(mine, store) as knn:
        assert knn(ids, scores) is scores


def test_a_run_of_one_token_is_told_apart_by_the_cache(mine, capture):
    text = torch.full((1, 14), 7)
    states = all_states(mine, text)
    # The positions differ, so a wrong one would be noticed.
    assert all(not close(states[:, at], states[:, at + 1]) for at in range(13))
    cache = DynamicCache(config=mine.config)
    run(mine, text[:, :8], cache)
    assert close(found(capture, text[:, :8]), states[:, 7])
    # Four candidates are looked at, two are kept; then the next four.
    run(mine, text[:, 8:12], cache)
    assert close(found(capture, text[:, :9]), states[:, 8])
    assert close(found(capture, text[:, :10]), states[:, 9])
    cache.crop(-2)
    run(mine, text[:, 10:14], cache)
    assert close(found(capture, text[:, :11]), states[:, 10])
    assert close(found(capture, text[:, :14]), states[:, 13])


def test_an_earlier_pass_over_the_same_ids_is_not_taken(mine, capture):
    # The mask differs, and with it the states.
    ids = some_ids(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    run(mine, ids)
    run(mine, ids, attention_mask=mask, position_ids=positions)
    assert close(found(capture, ids)[1:], all_states(mine, ids[1:, 3:])[:, -1])


def test_a_first_layer_that_counts_no_tokens():
    # Its states are kept beside the cache's layers, whose first is empty for ever.
    sizes = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "block_size": 8}
    config = MiniMaxConfig(
        **sizes,
        vocab_size=384,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        layer_types=["linear_attention", "full_attention"],
    )
    torch.manual_seed(0)
    minimax = MiniMaxForCausalLM(config).eval()
    capture = StateCapture(minimax, find_key(minimax))
    right = []

    def compare(input_ids, scores):
        window, position, on_cpu = capture.find(input_ids)
        assert torch.equal(on_cpu, input_ids)
        expected = all_states(minimax, input_ids)[:, -1]
        right.append(close(window.states[:, position], expected))
        return scores

    greedy(minimax, some_ids(1, 6), compare)
    capture.close()
    assert right == [True] * 6


def test_states_are_kept_as_they_were(mine, capture):
    text = some_ids(1, 6)
    expected = all_states(mine, text)[:, -1]
    # A network that works in place changes its own input.
    handle = mine.transformer.h[1].mlp.register_forward_hook(lambda _, args, __: args[0].zero_())
    run(mine, text)
    handle.remove()
    assert close(found(capture, text), expected)
