"""A pass over rows of different lengths gives each row what it gets alone."""

import pytest
import torch
from conftest import make_gpt2
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPTNeoXConfig,
    LlamaConfig,
    OPTConfig,
    Qwen2Config,
)

from knn_logits_serve.shared_passes import RowsCache, read, reads_rows

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, intermediate_size=64, num_key_value_heads=2),
    "qwen2": Qwen2Config(**SIZES, intermediate_size=64, num_key_value_heads=2),
    "gpt_neox": GPTNeoXConfig(**SIZES, intermediate_size=64),
    "opt": OPTConfig(**SIZES, ffn_dim=64, word_embed_proj_dim=32),
}


def of(config, **settings):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, **settings).eval()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_each_row_is_scored_as_alone_whatever_the_others_read(name, attention):
    model = of(CONFIGS[name], attn_implementation=attention)
    assert reads_rows(model)
    numbers = torch.Generator().manual_seed(1)

    def some(tokens):
        return torch.randint(1, 99, (tokens,), generator=numbers).tolist()

    cache, texts = RowsCache(), []

    def check(rows, fresh):
        most = max(map(len, fresh))
        scores = read(model, cache, rows, fresh, most)
        for at, (row, tokens) in enumerate(zip(range(rows.start, rows.stop), fresh, strict=True)):
            texts[row] += tokens
            alone = model(input_ids=torch.tensor([texts[row]])).logits[0, -len(tokens) :]
            torch.testing.assert_close(scores[at, : len(tokens)], alone, rtol=1e-4, atol=1e-4)
            assert cache.lengths[row] == len(texts[row])

    def join(tokens):
        cache.lengths.append(0)
        texts.append([])
        check(slice(len(texts) - 1, len(texts)), [some(tokens)])

    def forget(row, tokens):
        cache.lengths[row] -= tokens
        del texts[row][-tokens:]

    join(5)
    join(40)
    check(slice(0, 2), [some(3), some(1)])
    forget(0, 2)
    check(slice(0, 2), [some(1), some(6)])
    join(300)  # beyond the room that was made at first
    forget(1, 4)
    check(slice(0, 3), [some(2), some(7), some(1)])
    cache.remove(0)
    texts[0] = texts.pop()
    check(slice(0, 2), [some(4), some(1)])
    cache.remove(1)
    texts.pop()
    check(slice(0, 1), [some(3)])


@torch.no_grad()
def test_padding_stays_within_the_positions_of_the_model():
    model = make_gpt2()
    cache = RowsCache()
    cache.lengths += [0, 0]
    read(model, cache, slice(0, 1), [list(range(1, 255))], 1)
    read(model, cache, slice(1, 2), [[1, 2]], 1)
    scores = read(model, cache, slice(0, 2), [[3, 4], [3, 4, 5, 6, 7]], 5)
    alone = model(input_ids=torch.tensor([[*range(1, 255), 3, 4]])).logits[0, -2:]
    torch.testing.assert_close(scores[0, :2], alone, rtol=1e-4, atol=1e-4)


def test_models_that_read_a_row_otherwise_are_left_out():
    bloom = BloomConfig(
        vocab_size=99, hidden_size=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    assert not reads_rows(of(bloom))  # no positions
    half = make_gpt2().to(torch.bfloat16)
    assert not reads_rows(half)
    biased = make_gpt2()
    forward = biased.transformer.forward

    def shifted(*args, position_ids=None, **kwargs):
        return forward(*args, **kwargs)

    biased.transformer.forward = shifted
    assert not reads_rows(biased)
    assert reads_rows(make_gpt2())
