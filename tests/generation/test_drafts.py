"""Text written with drafts is the text written without, greedy or sampled with a seed."""

import pytest
import torch
from conftest import TEXTS, make_gpt2
from gate_cases import random_adaptive
from transformers import (
    GenerationConfig,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    StoppingCriteria,
    TextIteratorStreamer,
)
from transformers.generation.streamers import BaseStreamer

import knn_logits
from knn_logits import KNNLogitsProcessor
from knn_logits.generation.drafts import can_draft

PROMPTS = [
    "When error code E42 appears, open",
    "The keeper reads",
    "Queen Maira founded",
    "The pump needs oil. The pump needs oil. The pump",
]


def ids_of(tokenizer, text):
    return tokenizer(text, return_tensors="pt")


@pytest.fixture
def knn(model, store):
    with KNNLogitsProcessor(model, store) as processor:
        yield processor


@pytest.fixture
def inputs(tokenizer):
    return ids_of(tokenizer, PROMPTS[0])


def written(knn, inputs, *, draft, **settings):
    settings = {"max_new_tokens": 40, "do_sample": False, **settings}
    output = knn.generate(**inputs, draft=draft, **settings)
    return output, knn.passes


def both(knn, inputs, **settings):
    """What is written without drafts and with them, and the passes of each."""
    return [written(knn, inputs, draft=draft, **settings) for draft in (False, True)]


@pytest.fixture(params=["plain", "retomaton", "adaptive", "two"])
def memory(request, build, store, tmp_path):
    """What is searched, and how."""
    settings = {"k": 16, "lmbda": 0.7, "temperature": 3.0}
    if request.param == "retomaton":
        return {"datastore": store, **settings, "retomaton": True}
    if request.param == "adaptive":
        return {"datastore": store, **settings, "lmbda": random_adaptive()}
    if request.param == "two":
        other = build(TEXTS[:3], tmp_path / "o", k=4)
        return {"datastore": [store, other], **settings}
    return {"datastore": store, **settings}


def test_greedy_text_is_the_same_in_fewer_passes(model, tokenizer, memory):
    total = 0
    with KNNLogitsProcessor(model, memory.pop("datastore"), **memory) as knn:
        for prompt in PROMPTS:
            inputs = ids_of(tokenizer, prompt)
            (plain, without), (drafted, passes) = both(knn, inputs)
            assert torch.equal(plain, drafted)
            assert without == plain.shape[1] - inputs["input_ids"].shape[1] - 1
            total += passes
    assert total < 39 * len(PROMPTS)


def test_the_trace_is_the_same(model, tokenizer, store):
    inputs = ids_of(tokenizer, PROMPTS[0])
    with KNNLogitsProcessor(model, store, candidates=2) as knn:
        traces = []
        for draft in (False, True):
            output, _ = written(knn, inputs, draft=draft)
            traces.append(knn.trace(output, tokenizer)[0])
    for one, other in zip(*(trace.tokens for trace in traces), strict=True):
        assert one.token_id == other.token_id
        assert one.p == pytest.approx(other.p, abs=1e-5)
        assert one.influence == pytest.approx(other.influence, abs=1e-4)
        assert [d.document for d in one.documents] == [d.document for d in other.documents]


def test_scores_logits_and_sequences_are_those_without_drafts(tokenizer, knn):
    inputs = ids_of(tokenizer, PROMPTS[3])
    settings = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    (plain, _), (drafted, _) = both(knn, inputs, **settings)
    assert torch.equal(plain.sequences, drafted.sequences)
    for name in ("scores", "logits"):
        for one, other in zip(plain[name], drafted[name], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert drafted.past_key_values.get_seq_length() == plain.past_key_values.get_seq_length()


class Seen(BaseStreamer):
    def __init__(self):
        self.tokens, self.ended = [], 0

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended += 1


class After(StoppingCriteria):
    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **_):
        return torch.full((1,), input_ids.shape[1] >= self.length)


def test_streaming_and_stopping_see_every_token(tokenizer, knn):
    inputs = ids_of(tokenizer, PROMPTS[1])
    # Long enough for several drafts.
    whole, _ = written(knn, inputs, draft=True, max_new_tokens=16)
    for length in range(inputs["input_ids"].shape[1] + 1, whole.shape[1]):
        streamer = Seen()
        output, _ = written(
            knn, inputs, draft=True, stopping_criteria=[After(length)], streamer=streamer,
            max_new_tokens=16,
        )  # fmt: skip
        assert output.tolist() == whole[:, :length].tolist()
        assert streamer.tokens == output[0].tolist()
        assert streamer.ended == 1
    text = TextIteratorStreamer(tokenizer, skip_prompt=True)
    written(knn, inputs, draft=True, streamer=text, max_new_tokens=16)
    start = inputs["input_ids"].shape[1]
    assert "".join(text) == tokenizer.decode(whole[0, start:])


def test_an_end_token_ends_a_text_within_a_draft(knn, inputs):
    whole, _ = written(knn, inputs, draft=False, max_new_tokens=20)
    for end in set(whole[0, inputs["input_ids"].shape[1] :].tolist()):
        ending = {"eos_token_id": end, "pad_token_id": 0, "max_new_tokens": 20}
        (one, _), (other, _) = both(knn, inputs, **ending)
        assert torch.equal(one, other)


def test_constraints_hold_within_a_draft(model, tokenizer, store):
    inputs = ids_of(tokenizer, PROMPTS[3])
    for settings in (
        {"no_repeat_ngram_size": 3},
        {"repetition_penalty": 1.3},
        {"bad_words_ids": [[one] for one in range(60, 120)]},
        {"min_new_tokens": 30},
    ):
        with KNNLogitsProcessor(model, store) as knn:
            (plain, _), (drafted, _) = both(knn, inputs, **settings)
        assert torch.equal(plain, drafted)


def test_a_string_stops_a_text_within_a_draft(tokenizer, knn, inputs):
    whole, most = written(knn, inputs, draft=True)
    text = tokenizer.decode(whole[0, inputs["input_ids"].shape[1] + 12 :])
    for stop in (text[:6], text[3:8], "never written"):
        stopping = {"stop_strings": [stop], "tokenizer": tokenizer}
        (plain, _), (drafted, passes) = both(knn, inputs, **stopping)
        config = GenerationConfig(stop_strings=[stop], eos_token_id=0, pad_token_id=0)
        alike, _ = written(knn, inputs, draft=True, generation_config=config, **stopping)
        assert plain.tolist() == drafted.tolist() == alike.tolist()
        assert passes < drafted.shape[1] - inputs["input_ids"].shape[1] - 1
        assert (stop in tokenizer.decode(plain[0])) == (plain.shape[1] < whole.shape[1])
    assert passes == most


def test_a_seed_draws_the_same_text_with_drafts(knn, inputs):
    total = 0
    for seed in range(12):
        texts = []
        for draft in (False, True):
            torch.manual_seed(seed)
            output, passes = written(
                knn, inputs, draft=draft, do_sample=True, top_p=0.9, max_new_tokens=16
            )
            texts.append(output)
        total += passes
        assert torch.equal(*texts)
    assert total < 12 * 15


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 2},
        {"num_return_sequences": 2, "do_sample": True},
        {"use_cache": False},
        {"prompt_lookup_num_tokens": 3},
        {"cache_implementation": "static"},
    ],
)
def test_what_cannot_be_drafted_is_written_as_without(model, tokenizer, knn, inputs, settings):
    assert not can_draft(model, inputs["input_ids"], settings)
    texts = []
    for draft in (False, True):
        torch.manual_seed(0)
        texts.append(written(knn, inputs, draft=draft, max_new_tokens=8, **settings)[0])
    assert torch.equal(*texts)
    batch = tokenizer(PROMPTS[1:3], return_tensors="pt", padding=True)
    assert torch.equal(
        written(knn, batch, draft=False, pad_token_id=0)[0],
        written(knn, batch, draft=True, pad_token_id=0)[0],
    )


def test_models_of_other_kinds(tokenizer, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    size = {
        "vocab_size": 384, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    }  # fmt: skip
    llama = LlamaForCausalLM(LlamaConfig(**size)).eval()
    sliding = MistralForCausalLM(MistralConfig(**size, sliding_window=16)).eval()
    for number, (other, drafts) in enumerate(((llama, True), (sliding, False))):
        store = knn_logits.build_datastore(
            other, tokenizer, TEXTS, tmp_path / str(number), k=8, calibrate=False
        )
        inputs = ids_of(tokenizer, PROMPTS[0])
        inputs.pop("token_type_ids", None)
        assert can_draft(other, inputs["input_ids"], {}) is drafts
        with KNNLogitsProcessor(other, store, lmbda=0.7, temperature=1.0) as knn:
            (plain, without), (drafted, passes) = both(knn, inputs)
        assert torch.equal(plain, drafted)
        assert (passes < without) is drafts


def test_a_model_without_a_cache_writes_without_drafts(tokenizer, tmp_path):
    torch.manual_seed(0)
    config = OpenAIGPTConfig(vocab_size=384, n_positions=256, n_embd=32, n_layer=2, n_head=4)
    other = OpenAIGPTLMHeadModel(config).eval()
    key = "transformer.h.1.mlp:input"
    store = knn_logits.build_datastore(
        other, tokenizer, TEXTS, tmp_path / "s", k=8, key=key, calibrate=False
    )
    inputs = {"input_ids": ids_of(tokenizer, PROMPTS[0])["input_ids"]}
    with KNNLogitsProcessor(other, store, lmbda=0.7, temperature=1.0) as knn:
        (plain, without), (drafted, passes) = both(knn, inputs, max_new_tokens=8)
    assert torch.equal(plain, drafted)
    assert passes == without == 7


@pytest.mark.parametrize(("dtype", "passes"), [(torch.bfloat16, 23), (torch.float32, None)])
def test_in_half_precision_only_a_followed_passage_has_drafts(tokenizer, tmp_path, dtype, passes):
    """A pass over several tokens rounds otherwise, and the text has to be the model's own."""
    model = make_gpt2().to(dtype)
    store = knn_logits.build_datastore(model, tokenizer, TEXTS, tmp_path / "s", calibrate=False)
    inputs = ids_of(tokenizer, PROMPTS[0] + " " + PROMPTS[0])
    settings = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    own = model.generate(**inputs, **settings)
    silent = random_adaptive(lmbda=-99.0, share=-99.0)
    for lmbda in (silent, 0.0):
        with KNNLogitsProcessor(model, store, lmbda=lmbda) as knn:
            assert torch.equal(knn.generate(**inputs, **settings), own)
            # An untrained model repeats itself, which its own text drafts.
            assert knn.passes == passes if passes else knn.passes < 23
    with KNNLogitsProcessor(model, store, lmbda=random_adaptive(share=99.0)) as knn:
        knn.generate(**inputs, **settings)
        assert knn.passes < 23
