"""Where the key is: the rule, the names that a user can give, and what is refused."""

import pytest
import torch
from conftest import TEXTS
from hooked import some_ids
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    CTRLConfig,
    CTRLLMHeadModel,
    GPT2Config,
    GPT2Model,
    ViTConfig,
    ViTModel,
)

from knn_logits import KNNLogitsProcessor, Memory, build_datastore
from knn_logits.engine.forward import key_states
from knn_logits.engine.location import KeyLocation, decoder_of, find_key, is_encoder_decoder
from knn_logits.errors import ConfigError, ModelError

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@pytest.fixture
def ids():
    return some_ids(2, 7)


def test_the_default_is_the_input_of_the_feed_forward_network(model, ids):
    location = find_key(model)
    assert location == find_key(model, "ffn_input")
    assert location == KeyLocation("ffn_input", "transformer.h.1.mlp", "input")
    assert str(location) == "transformer.h.1.mlp:input"
    # In GPT-2 that is what the second layer norm of the layer gives.
    norm = key_states(model, find_key(model, "transformer.h.1.ln_2:output"), {"input_ids": ids})
    assert torch.equal(key_states(model, location, {"input_ids": ids}), norm)


@pytest.mark.parametrize("name", ["FFN_INPUT", "transformer.h.1.mlp"])
def test_a_name_of_another_form_is_refused(model, name):
    names = "'ffn_input', 'layer_output', 'head_input', or a module's path"
    with pytest.raises(ConfigError, match=names):
        find_key(model, name)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])


@pytest.mark.parametrize(
    "make",
    [
        Plain,
        lambda: BertModel(BertConfig(**SMALL, vocab_size=99)),
        lambda: ViTModel(ViTConfig(**SMALL, image_size=8, patch_size=4)),
        # The stack alone, as AutoModel loads it, has no scores to mix with.
        lambda: GPT2Model(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=99)),
    ],
    ids=["plain", "bert", "vit", "gpt2 without a head"],
)
def test_a_model_that_does_not_generate_is_refused(make):
    other = make()
    for name in ("ffn_input", "layer_output", "head_input"):
        with pytest.raises(ModelError, match=f"{type(other).__name__} has no decoder"):
            find_key(other, name)


def test_a_model_that_the_rule_does_not_know_works_with_a_named_key(ids):
    # CTRL's layers are plain modules.
    config = CTRLConfig(n_layer=2, n_embd=32, n_head=2, dff=48, n_positions=64, vocab_size=384)
    ctrl = CTRLLMHeadModel(config).eval()
    with pytest.raises(ModelError, match="has no known list of layers"):
        find_key(ctrl)
    location = find_key(ctrl, "transformer.h.1.ffn:input")
    assert key_states(ctrl, location, {"input_ids": ids}).shape == (2, 7, 32)


def test_a_layer_without_a_known_feed_forward_network_is_refused():
    from transformers import BertLMHeadModel

    bert = BertLMHeadModel(BertConfig(**SMALL, vocab_size=99, is_decoder=True))
    with pytest.raises(ModelError, match="has no known feed-forward network"):
        find_key(bert)
    assert find_key(bert, "layer_output").module == "bert.encoder.layer.1"


def test_a_tensor_that_is_not_one_vector_a_token_is_refused(ids):
    from transformers import LlamaConfig, LlamaForCausalLM

    llama = LlamaForCausalLM(LlamaConfig(**SMALL, vocab_size=384)).eval()
    # One row of angles for the whole batch.
    location = find_key(llama, "model.rotary_emb:output")
    with pytest.raises(ModelError, match=r"not one vector per token; choose another key"):
        key_states(llama, location, {"input_ids": ids})


def test_the_heads_input_is_what_the_head_reads(model, tokenizer, ids, tmp_path):
    location = find_key(model, "head_input")
    states = key_states(model, location, {"input_ids": ids})
    with torch.no_grad():
        torch.testing.assert_close(model.lm_head(states), model(ids).logits)
    # `generate()` gives the head the last state only.
    store = build_datastore(
        model, tokenizer, TEXTS, tmp_path / "s", key="head_input", k=8, calibrate=False
    )
    with KNNLogitsProcessor(model, store) as knn:
        text = knn.generate(ids, max_new_tokens=5)[:, :-1]
        found = knn.vote.neighbors.nearness
    states = key_states(model, location, {"input_ids": text})[:, -1:]
    wanted = Memory(model, store).neighbors(states, text).nearness
    torch.testing.assert_close(found[:, :8], wanted[:, :8])


def test_the_decoder_is_not_the_head_of_that_name():
    from transformers import ModernBertDecoderConfig, ModernBertDecoderForCausalLM

    config = ModernBertDecoderConfig(**SMALL, vocab_size=99, pad_token_id=0)
    model = ModernBertDecoderForCausalLM(config)
    assert isinstance(model.get_decoder(), nn.Linear)
    assert decoder_of(model) is model.model


def test_encoder_decoder_models_take_the_decoder():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, vocab_size=99)
    t5 = T5ForConditionalGeneration(config)
    assert is_encoder_decoder(t5)
    assert decoder_of(t5) is t5.decoder
    assert find_key(t5).module.startswith("decoder.block.1.")
    with pytest.raises(ModelError, match="not in the decoder"):
        find_key(t5, "encoder.block.1:output")
