"""Prompts that begin alike: the beginning is read once, and texts do not depend on others."""

import gc

import pytest
import torch
from conftest import TEXTS, make_gpt2
from transformers import (
    DynamicCache,
    MistralConfig,
    MistralForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

from knn_logits import KNNLogitsProcessor
from knn_logits.hosting import PromptReader

SIZE = {"vocab_size": 384, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def text(tokenizer):
    return tokenizer(" ".join(TEXTS), return_tensors="pt")["input_ids"][:, :240]


@pytest.fixture
def counted(model):
    """The numbers of tokens that passes of the shared model read."""
    found = []

    def note(_, args, given):
        found.append(given["input_ids"].shape[1])

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    yield found
    handle.remove()


def written(reader, generate, ids, **settings):
    """Returns a text and the scores of its tokens."""
    with reader.read(ids[0].tolist()) as inputs:
        output = generate(
            **inputs, max_new_tokens=6, do_sample=False, pad_token_id=0, output_scores=True,
            return_dict_in_generate=True, **settings,
        )  # fmt: skip
    return output.sequences, torch.cat(output.scores)


def prompts(text):
    """A prompt that goes on twice, its beginning, itself, a short one and others."""
    other = text.flip(1)
    ends = (70, 75, 200, 72, 72, 20, 66)
    return [*(text[:, :end] for end in ends), other[:, :100], other[:, :100], text[:, :80]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_memory", [False, True])
def test_a_text_does_not_depend_on_the_prompts_before(store, text, dtype, with_memory):
    model = make_gpt2().to(dtype)
    with KNNLogitsProcessor(model, store) as knn:
        generate = knn.generate if with_memory else model.generate
        reader = PromptReader(model)
        for ids in prompts(text):
            sequences, scores = written(reader, generate, ids)
            same, alike = written(PromptReader(model), generate, ids)
            assert torch.equal(sequences, same)
            assert torch.equal(scores, alike)
            if dtype is torch.float32:
                plain = generate(input_ids=ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
                assert torch.equal(sequences, plain)


def test_the_beginning_that_two_prompts_share_is_read_once(model, text, counted):
    reader, found = PromptReader(model), []
    for ids in prompts(text):
        written(reader, model.generate, ids)
        found.append([read for read in counted if read > 1])
        counted.clear()
    assert found == [[64, 6], [11], [64, 64, 8], [8], [8], [20], [2], [64, 36], [36], [64, 16]]


def test_long_prompts_have_long_pieces(counted, model):
    reader = PromptReader(model)
    with pytest.raises(Exception, match="index"), reader.read([0] * 2000):
        pass
    assert counted == [512]


@pytest.fixture
def _new_objects_only():
    """Lets the garbage collector look at new objects only: those of other tests are many."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_new_objects_only")
def test_one_prompt_is_kept(model, text):
    def caches():
        gc.collect()
        return sum(type(one) is DynamicCache for one in gc.get_objects())

    before, reader = caches(), PromptReader(model)
    for ids in prompts(text):
        written(reader, model.generate, ids)
        assert caches() == before + 1
    del reader
    assert caches() == before


def test_models_whose_cache_forgets_or_that_have_none_read_all(text):
    torch.manual_seed(0)
    sliding = MistralForCausalLM(MistralConfig(**SIZE, **HEADS, sliding_window=16)).eval()
    config = OpenAIGPTConfig(vocab_size=384, n_positions=256, n_embd=32, n_layer=2, n_head=4)
    for model in (sliding, OpenAIGPTLMHeadModel(config).eval()):
        reader = PromptReader(model)
        for ids in (text[:, :70], text[:, :80]):
            with reader.read(ids[0].tolist()) as inputs:
                assert inputs.keys() == {"input_ids", "attention_mask"}
