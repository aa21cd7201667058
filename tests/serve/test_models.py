"""Models that the server refuses, or runs in another way."""

import copy

import pytest
import torch
from conftest import make_gpt2

from knn_logits.errors import ConfigError, ModelError
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


def test_an_encoder_decoder_model_is_refused_in_one_line(marian, pair_tokenizer, pair_store):
    with pytest.raises(ConfigError, match="is an encoder-decoder model"):
        Served("marian", marian, pair_tokenizer, {"pairs": pair_store})
