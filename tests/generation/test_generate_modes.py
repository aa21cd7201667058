"""Every decoding mode uses the mixture: each token's log-probability against the reference."""

import copy

import pytest
import torch
from conftest import TEXTS, make_gpt2
from mixture_reference import (
    LMBDA,
    PROMPTS,
    SETTINGS,
    TEMPERATURE,
    K,
    check,
    encode,
    generate_checked,
    in_every_mode,
)
from transformers import CompileConfig, StaticCache

import knn_logits
from knn_logits import KNNLogitsProcessor


@in_every_mode
def test_modes(model, tokenizer, memory, knn, settings, rows):
    torch.manual_seed(3)
    generate_checked(model, tokenizer, memory, knn, encode(tokenizer, PROMPTS[:rows]), **settings)


def test_chunked_prefill(model, tokenizer, memory, knn):
    inputs = encode(tokenizer, [TEXTS[0]])
    generate_checked(model, tokenizer, memory, knn, inputs, prefill_chunk_size=7)


def test_resumed_cache(model, tokenizer, memory, knn):
    inputs = encode(tokenizer, PROMPTS[:1])
    first = model.generate(**inputs, **SETTINGS, do_sample=False)
    more = tokenizer(" The keeper", return_tensors="pt")["input_ids"]
    ids = torch.cat([first.sequences, more], -1)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=first.past_key_values,
        **SETTINGS,
        do_sample=False,
        logits_processor=[knn],
    )
    check(model, memory, output, knn, tokenizer, ids.shape[1])


@pytest.mark.parametrize("prompt", [PROMPTS[4], "a"])
def test_classifier_free_guidance(model, tokenizer, memory, knn, prompt):
    inputs, reference = encode(tokenizer, [prompt]), {"guidance": 1.5}
    generate_checked(model, tokenizer, memory, knn, inputs, reference, guidance_scale=1.5)


def test_guidance_with_a_negative_prompt_of_the_same_length(model, tokenizer, memory, knn):
    # Both branches then run with the same last token and the same start.
    inputs = encode(tokenizer, [PROMPTS[4]])
    negative = inputs["input_ids"].flip(1)
    settings = {
        "negative_prompt_ids": negative,
        "negative_prompt_attention_mask": torch.ones_like(negative),
        "guidance_scale": 1.5,
    }
    reference = {"guidance": 1.5, "negative": negative[0]}
    generate_checked(model, tokenizer, memory, knn, inputs, reference, **settings)


# What generate() would compile with, "inductor", takes long to compile.
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.soak)])
def test_static_cache_compiled(model, tokenizer, memory, store, backend):
    torch._dynamo.reset()
    own = copy.deepcopy(model)
    inputs = encode(tokenizer, PROMPTS[:2])
    compile_config = CompileConfig(mode="default", backend=backend)
    compile_config._compile_all_devices = True
    settings = {"cache_implementation": "static", "compile_config": compile_config}
    # Compiled once without hooks: a processor attached later must not be passed over.
    own.generate(**inputs, **SETTINGS, do_sample=False, **settings)
    with KNNLogitsProcessor(own, store, k=K, lmbda=LMBDA, temperature=TEMPERATURE) as knn:
        for _ in range(2):
            generate_checked(own, tokenizer, memory, knn, inputs, **settings)
    torch._dynamo.reset()


def test_static_cache_object(model, tokenizer, memory, knn):
    inputs = encode(tokenizer, PROMPTS[:1])
    cache = StaticCache(config=model.config, max_cache_len=64)
    generate_checked(model, tokenizer, memory, knn, inputs, past_key_values=cache)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(tokenizer, tmp_path, dtype):
    half = make_gpt2().to(dtype)
    store = knn_logits.build_datastore(half, tokenizer, TEXTS, tmp_path / "store", calibrate=False)
    inputs = encode(tokenizer, ["The harbour crane"])
    with KNNLogitsProcessor(half, store, k=8, lmbda=0.9, temperature=1.0) as knn:
        output = half.generate(**inputs, max_new_tokens=8, do_sample=False, logits_processor=[knn])
        trace = knn.trace(output, tokenizer)
    assert trace[0].text == " lifts twelve crates"[: len(trace[0].text)]
    assert all(0 < token.p <= 1 for token in trace[0].tokens)


@pytest.mark.parametrize("where", [{"": "cpu"}, {"transformer.h.1": "disk"}], ids=["cpu", "disk"])
def test_device_map(model, tokenizer, store, knn, tmp_path, where):
    """A model spread by accelerate, one layer waiting on disk."""
    pytest.importorskip("accelerate")
    inputs = encode(tokenizer, PROMPTS[:2])
    plain = model.generate(**inputs, max_new_tokens=8, do_sample=False, logits_processor=[knn])
    from transformers import GPT2LMHeadModel

    model.save_pretrained(tmp_path / "model")
    places = where
    if "" not in where:
        rest = ["transformer.wte", "transformer.wpe", "transformer.h.0", "transformer.ln_f"]
        places = dict.fromkeys([*rest, "transformer.drop", "lm_head"], "cpu") | where
    spread = GPT2LMHeadModel.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "offload"
    )
    with KNNLogitsProcessor(spread, store, k=K, lmbda=LMBDA, temperature=TEMPERATURE) as other:
        output = spread.generate(
            **inputs, max_new_tokens=8, do_sample=False, logits_processor=[other]
        )
    assert output.tolist() == plain.tolist()
