"""What a model writes by itself before a build."""

import copy

import pytest
import torch

from knn_logits.building.sample_texts import opening_of, sample_texts, writing_seconds


def sure(model):
    """The model with a head that always gives the same token, no end, nearly all probability."""
    other = copy.deepcopy(model)
    other.lm_head = torch.nn.Linear(32, 384)
    torch.nn.init.zeros_(other.lm_head.weight)
    other.lm_head.bias.data = torch.arange(384.0) * 3.0
    return other


@pytest.mark.parametrize("is_sure", [True, False])
def test_an_unsure_model_is_stopped_after_its_first_tokens(model, tokenizer, is_sure):
    model = sure(model) if is_sure else model
    passes = []
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    try:
        texts = sample_texts(model, tokenizer)
    finally:
        hook.remove()
    # One pass finds the first tokens, and each other one writes a token of all texts.
    assert len(passes) == (1 + 24 if is_sure else 1 + 8)
    assert (texts is not None) is is_sure
    if is_sure:
        assert [len(text) for text in texts] == [25] * 24
        assert len({int(text[0]) for text in texts}) == 24


def test_a_model_that_writes_nothing_takes_no_time(model, tokenizer, monkeypatch):
    assert writing_seconds(model, tokenizer, 1e-3) > 0.0
    monkeypatch.setattr(model.config, "is_encoder_decoder", True)
    assert opening_of(model, tokenizer) == []
    assert sample_texts(model, tokenizer) is None
    assert writing_seconds(model, tokenizer, 1e-3) == 0.0
