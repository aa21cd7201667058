"""Models that the server refuses, or runs in another way."""

import copy

import pytest
import torch
from conftest import make_gpt2
from transformers import LlamaConfig, LlamaForCausalLM

from knn_logits.errors import ConfigError, ModelError
from knn_logits_app.decoding import pad_rows
from knn_logits_serve.served import Served


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_compiled_model_is_refused_in_one_line(model, tokenizer, store, fullgraph):
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager", fullgraph=fullgraph)
    for other in (compiled, torch.compile(model, backend="eager", fullgraph=fullgraph)):
        with pytest.raises(ConfigError, match=r"before torch\.compile"):
            Served("tiny", other, tokenizer, {"texts": store})


@pytest.mark.filterwarnings("ignore")
def test_a_dynamically_quantised_model_is_refused_in_one_line(tokenizer, store):
    quantised = torch.ao.quantization.quantize_dynamic(make_gpt2(), {torch.nn.Linear})
    with pytest.raises(ModelError, match="quantize_dynamic"):
        Served("tiny", quantised, tokenizer, {"texts": store})


def test_a_model_in_half_precision_sees_few_numbers_of_rows(monkeypatch):
    """For each new number oneDNN kept code that it never gave back."""
    config = LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(0)
    half = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    texts = [torch.arange(length)[None] % 99 for length in range(1, 260)]
    with torch.no_grad():
        before = [half(text).logits for text in texts]
        pad_rows(half)
        seen, linear = set(), torch.nn.functional.linear

        def counted(states, *rest):
            seen.add(states.shape[:-1].numel())
            return linear(states, *rest)

        monkeypatch.setattr(torch.nn.functional, "linear", counted)
        for text, logits in zip(texts, before, strict=True):
            torch.testing.assert_close(half(text).logits, logits, rtol=0.05, atol=0.05)
    assert len(seen) <= 16 + 4 * 8 + 1


def test_an_encoder_decoder_model_is_refused_in_one_line(marian, pair_tokenizer, pair_store):
    with pytest.raises(ConfigError, match="is an encoder-decoder model"):
        Served("marian", marian, pair_tokenizer, {"pairs": pair_store})
