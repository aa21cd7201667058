"""Every decoding mode uses the mixture: each token's log-probability against a plain reference.

The reference scores the finished sequence in one forward pass without a cache, searches all keys
in float64 with NumPy, and mixes in float64.
"""

import copy
import threading

import numpy as np
import pytest
import torch
from conftest import TEXTS, make_gpt2
from transformers import (
    CompileConfig,
    GenerationConfig,
    LogitsProcessor,
    StaticCache,
    TextIteratorStreamer,
)

import knn_logits
from knn_logits import KNNLogitsProcessor
from knn_logits.capture.forward import key_states_and_logits
from knn_logits.capture.location import find_key

K, LMBDA, TEMPERATURE = 64, 0.4, 2.0
PROMPTS = [
    "The harbour crane",
    "Queen Maira founded the town",
    "Each morning the keeper reads",
    "E42",
    "The pump needs oil of grade seven. The crane",
    "In 1312",
    "a",
    "__________",
]


@pytest.fixture
def knn(model, store):
    with KNNLogitsProcessor(model, store, k=K, lmbda=LMBDA, temperature=TEMPERATURE) as processor:
        yield processor


@pytest.fixture(scope="module")
def memory(store):
    ids = np.arange(len(store))
    return store.keys(ids).astype(np.float64), store.values.numpy()


def log_p_knn(states, memory, vocabulary):
    keys, values = memory
    out = np.zeros((len(states), vocabulary))
    for row, query in enumerate(states.astype(np.float64)):
        distances = ((keys - query) ** 2).sum(-1)
        nearest = np.argsort(distances, kind="stable")[:K]
        weights = np.exp(-(distances[nearest] - distances[nearest].min()) / TEMPERATURE)
        np.add.at(out[row], values[nearest], weights / weights.sum())
    with np.errstate(divide="ignore"):
        return np.log(out)


def reference(model, memory, sequence, mask=None, unconditional=None, guidance=1.0):
    """log p of each token after the first, float64 [tokens - 1]."""
    inputs = {"input_ids": sequence[None]}
    if mask is not None:
        inputs["attention_mask"] = mask[None]
        inputs["position_ids"] = (mask.cumsum(0) - 1).clamp(min=0)[None]
    states, logits = key_states_and_logits(model, find_key(model), inputs)
    log_p_lm = torch.log_softmax(logits[0].double(), -1)
    if unconditional is not None:
        ids, first = unconditional
        _, other = key_states_and_logits(model, find_key(model), {"input_ids": ids[None]})
        other = torch.log_softmax(other[0].double(), -1)[first - len(sequence) :]
        mixed = guidance * (log_p_lm[first:] - other) + other
        log_p_lm[first:] = torch.log_softmax(mixed, -1)
    lm = log_p_lm.numpy()
    found = log_p_knn(states[0].numpy(), memory, lm.shape[-1])
    mixture = np.logaddexp(lm + np.log(1 - LMBDA), found + np.log(LMBDA))
    targets = sequence[1:].numpy()
    return mixture[np.arange(len(targets)), targets]


def used(output, number, start, beams=False):
    """log-probabilities that generate() worked with for a sequence's new tokens."""
    out = []
    for step, scores in enumerate(output.scores):
        if start + step >= output.sequences.shape[1]:
            break
        row = int(output.beam_indices[number, step]) if beams else number
        if row < 0:
            break
        token = int(output.sequences[number, start + step])
        out.append(float(torch.log_softmax(scores[row].double(), -1)[token]))
    return np.array(out)


def check(
    model,
    memory,
    output,
    knn,
    tokenizer,
    start,
    mask=None,
    beams=False,
    guidance=1.0,
    negative=None,
):
    trace = knn.trace(output, tokenizer)
    assert len(trace) == len(output.sequences)
    for number, sequence in enumerate(output.sequences):
        got = used(output, number, start, beams)
        assert len(got) > 0
        full = None
        if mask is not None:
            new = torch.ones(len(sequence) - start, dtype=mask.dtype)
            full = torch.cat([mask[number % len(mask)], new])
        length = start + len(got)
        branch = {}
        if guidance != 1.0:
            # The other branch saw the negative prompt, or the last prompt token, and what followed.
            before = sequence[start - 1 : start] if negative is None else negative
            ids = torch.cat([before, sequence[start:length]])
            branch = {"unconditional": (ids, start - 1), "guidance": guidance}
        expected = reference(
            model, memory, sequence[:length], None if full is None else full[:length], **branch
        )[start - 1 :]
        np.testing.assert_allclose(got, expected, atol=1e-4)
        tokens = trace[number].tokens
        assert 0 < len(tokens) <= len(got)
        for token, log_p in zip(tokens, expected, strict=False):
            assert np.log(token.p) == pytest.approx(log_p, abs=1e-4)
            mixed = LMBDA * token.p_knn + (1 - LMBDA) * token.p_lm
            assert token.p == pytest.approx(mixed, rel=1e-6)
            rest = (1 - token.lmbda) * token.p_lm / token.p
            assert token.influence + rest == pytest.approx(1.0, abs=1e-6)


def encode(tokenizer, prompts):
    return tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")


SETTINGS = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 20}


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        pytest.param({}, 1, id="greedy"),
        pytest.param({}, 8, id="batch of 8 with left padding"),
        pytest.param({"use_cache": False}, 8, id="no cache"),
        pytest.param({"do_sample": True, "top_k": 0}, 8, id="sampling"),
        pytest.param(
            {"do_sample": True, "top_k": 0, "num_return_sequences": 3},
            2,
            id="num_return_sequences",
        ),
        pytest.param({"num_beams": 4}, 2, id="beams"),
        pytest.param(
            {"num_beams": 4, "num_return_sequences": 3, "early_stopping": True},
            2,
            id="beams, several returned",
        ),
        pytest.param({"num_beams": 3, "do_sample": True, "top_k": 0}, 2, id="beam sampling"),
        pytest.param({"cache_implementation": "static"}, 2, id="static cache"),
    ],
)
def test_modes(model, tokenizer, memory, knn, settings, rows):
    torch.manual_seed(3)
    inputs = encode(tokenizer, PROMPTS[:rows])
    settings = {"do_sample": False} | settings
    output = model.generate(**inputs, **SETTINGS, **settings, logits_processor=[knn])
    start = inputs["input_ids"].shape[1]
    returned = settings.get("num_return_sequences", 1)
    mask = inputs["attention_mask"].repeat_interleave(returned, 0)
    beams = settings.get("num_beams", 1) > 1
    check(model, memory, output, knn, tokenizer, start, mask, beams)


def test_chunked_prefill(model, tokenizer, memory, knn):
    inputs = encode(tokenizer, [TEXTS[0]])
    output = model.generate(
        **inputs, **SETTINGS, do_sample=False, prefill_chunk_size=7, logits_processor=[knn]
    )
    check(model, memory, output, knn, tokenizer, inputs["input_ids"].shape[1])


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


def test_inputs_embeds(model, tokenizer, knn):
    inputs = encode(tokenizer, PROMPTS[4:5])
    plain = model.generate(**inputs, max_new_tokens=12, do_sample=False, logits_processor=[knn])
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    output = model.generate(
        inputs_embeds=embeds,
        attention_mask=inputs["attention_mask"],
        max_new_tokens=12,
        do_sample=False,
        logits_processor=[knn],
    )
    assert output[0].tolist() == plain[0, inputs["input_ids"].shape[1] :].tolist()
    assert knn.trace(output, tokenizer)[0].tokens[0].influence > 0


@pytest.mark.parametrize("prompt", [TEXTS[1] + " When error code", "________", "a a a a a a a a"])
def test_prompt_lookup(model, tokenizer, memory, knn, prompt):
    inputs = encode(tokenizer, [prompt])
    plain = model.generate(**inputs, **SETTINGS, do_sample=False, logits_processor=[knn])
    output = model.generate(
        **inputs, **SETTINGS, do_sample=False, prompt_lookup_num_tokens=4, logits_processor=[knn]
    )
    assert output.sequences.tolist() == plain.sequences.tolist()
    check(model, memory, output, knn, tokenizer, inputs["input_ids"].shape[1])


class Biased(LogitsProcessor):
    """Makes a model repeat itself, so that prompt lookup finds candidates."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores.scatter_add_(1, input_ids[:, -12:-11], torch.full((len(scores), 1), 30.0))
        return scores


def test_prompt_lookup_with_accepted_candidates(model, tokenizer, knn):
    inputs = encode(tokenizer, [TEXTS[4]])
    settings = {"do_sample": False, "max_new_tokens": 40, "logits_processor": [Biased(), knn]}
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    plain = model.generate(**inputs, **settings)
    steps = len(calls)
    assisted = model.generate(**inputs, **settings, prompt_lookup_num_tokens=5)
    handle.remove()
    # Some releases of transformers accept more candidates than there is room for.
    assert assisted[:, : plain.shape[1]].tolist() == plain.tolist()
    assert len(calls) - steps < steps
    assert knn.trace(assisted, tokenizer)[0].tokens


@pytest.mark.parametrize("close", [True, False], ids=["like the model", "unlike the model"])
def test_assisted_by_a_smaller_model(model, tokenizer, memory, knn, close):
    assistant = make_gpt2(seed=5, layers=1)
    if close:
        assistant = make_gpt2()
        with torch.no_grad():
            for parameter in assistant.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
    inputs = encode(tokenizer, PROMPTS[4:5])
    plain = model.generate(**inputs, **SETTINGS, do_sample=False, logits_processor=[knn])
    for _ in range(2):
        output = model.generate(
            **inputs,
            **SETTINGS,
            do_sample=False,
            assistant_model=assistant,
            logits_processor=[knn],
        )
        assert output.sequences.tolist() == plain.sequences.tolist()
        check(model, memory, output, knn, tokenizer, inputs["input_ids"].shape[1])


def test_an_assistants_own_calls_are_left_alone(model, tokenizer, store):
    assistant = make_gpt2(seed=5, layers=1)
    seen = []

    class Spy(KNNLogitsProcessor):
        def __call__(self, input_ids, scores):
            answer = super().__call__(input_ids, scores)
            seen.append(answer is scores)
            return answer

    inputs = encode(tokenizer, PROMPTS[4:5])
    with Spy(model, store, k=K, lmbda=LMBDA, temperature=TEMPERATURE) as knn:
        for _ in range(2):
            seen.clear()
            output = model.generate(
                **inputs,
                max_new_tokens=12,
                do_sample=False,
                assistant_model=assistant,
                logits_processor=[knn],
            )
            assert any(seen)
            assert not all(seen)
            # Until the model's first forward pass only the assistant asks.
            assert seen[0]
    assert output.shape[1] > inputs["input_ids"].shape[1]


def test_assisted_sampling(model, tokenizer, memory, knn):
    torch.manual_seed(0)
    inputs = encode(tokenizer, PROMPTS[4:5])
    output = model.generate(
        **inputs,
        **SETTINGS,
        do_sample=True,
        top_k=0,
        assistant_model=make_gpt2(seed=5, layers=1),
        logits_processor=[knn],
    )
    check(model, memory, output, knn, tokenizer, inputs["input_ids"].shape[1])


@pytest.mark.parametrize("prompt", [PROMPTS[4], "a"])
def test_classifier_free_guidance(model, tokenizer, memory, knn, prompt):
    inputs = encode(tokenizer, [prompt])
    output = model.generate(
        **inputs, **SETTINGS, do_sample=False, guidance_scale=1.5, logits_processor=[knn]
    )
    start = inputs["input_ids"].shape[1]
    check(model, memory, output, knn, tokenizer, start, guidance=1.5)


def test_guidance_with_a_negative_prompt_of_the_same_length(model, tokenizer, memory, knn):
    # Both branches then run with the same last token and the same start.
    inputs = encode(tokenizer, [PROMPTS[4]])
    negative = inputs["input_ids"].flip(1)
    output = model.generate(
        **inputs,
        **SETTINGS,
        negative_prompt_ids=negative,
        negative_prompt_attention_mask=torch.ones_like(negative),
        guidance_scale=1.5,
        do_sample=False,
        logits_processor=[knn],
    )
    start = inputs["input_ids"].shape[1]
    check(model, memory, output, knn, tokenizer, start, guidance=1.5, negative=negative[0])


def test_static_cache_compiled(model, tokenizer, memory, store):
    torch._dynamo.reset()
    own = copy.deepcopy(model)
    inputs = encode(tokenizer, PROMPTS[:2])
    compile_config = CompileConfig(mode="default")
    compile_config._compile_all_devices = True
    settings = SETTINGS | {
        "do_sample": False,
        "cache_implementation": "static",
        "compile_config": compile_config,
        "max_new_tokens": 8,
    }
    # Compiled once without hooks: a processor attached later must not be passed over.
    own.generate(**inputs, **settings)
    with KNNLogitsProcessor(own, store, k=K, lmbda=LMBDA, temperature=TEMPERATURE) as knn:
        for _ in range(2):
            output = own.generate(**inputs, **settings, logits_processor=[knn])
            start = inputs["input_ids"].shape[1]
            check(own, memory, output, knn, tokenizer, start, inputs["attention_mask"])
    torch._dynamo.reset()


def test_static_cache_object(model, tokenizer, memory, knn):
    inputs = encode(tokenizer, PROMPTS[:1])
    cache = StaticCache(config=model.config, max_cache_len=64)
    output = model.generate(
        **inputs, **SETTINGS, do_sample=False, past_key_values=cache, logits_processor=[knn]
    )
    check(model, memory, output, knn, tokenizer, inputs["input_ids"].shape[1])


def test_streaming_from_another_thread(model, tokenizer, memory, knn):
    inputs = encode(tokenizer, PROMPTS[4:5])
    plain = model.generate(**inputs, **SETTINGS, do_sample=False, logits_processor=[knn])
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    outputs = []

    def work():
        outputs.append(
            model.generate(
                **inputs, **SETTINGS, do_sample=False, streamer=streamer, logits_processor=[knn]
            )
        )

    thread = threading.Thread(target=work)
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert outputs[0].sequences.tolist() == plain.sequences.tolist()
    trace = knn.trace(outputs[0], tokenizer)
    assert text.startswith(trace[0].text.removesuffix("<|endoftext|>"))
    check(model, memory, outputs[0], knn, tokenizer, inputs["input_ids"].shape[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(tokenizer, tmp_path, dtype):
    half = make_gpt2().to(dtype)
    store = knn_logits.build_datastore(half, tokenizer, TEXTS, tmp_path / "store")
    inputs = encode(tokenizer, ["The harbour crane"])
    with KNNLogitsProcessor(half, store, k=8, lmbda=0.9, temperature=1.0) as knn:
        output = half.generate(**inputs, max_new_tokens=8, do_sample=False, logits_processor=[knn])
        trace = knn.trace(output, tokenizer)
    assert trace[0].text == " lifts twelve crates"[: len(trace[0].text)]
    assert all(0 < token.p <= 1 for token in trace[0].tokens)


def test_a_forbidden_token_stays_forbidden(model, tokenizer, knn):
    inputs = encode(tokenizer, ["The harbour crane"])
    free = model.generate(**inputs, max_new_tokens=1, do_sample=False, logits_processor=[knn])
    banned = int(free[0, -1])
    output = model.generate(
        **inputs,
        max_new_tokens=1,
        do_sample=False,
        bad_words_ids=[[banned]],
        logits_processor=[knn],
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert float(output.scores[0][0, banned]) == float("-inf")
    assert float(output.scores[0].exp().sum()) == pytest.approx(1.0, abs=1e-5)


def test_nothing_given_nothing_changed(model, tokenizer, knn):
    inputs = encode(tokenizer, PROMPTS[:2])
    before = model.generate(**inputs, **SETTINGS, do_sample=False)
    knn.close()
    after = model.generate(**inputs, **SETTINGS, do_sample=False)
    assert before.sequences.tolist() == after.sequences.tolist()
    for one, other in zip(before.scores, after.scores, strict=True):
        assert torch.equal(one, other)


def test_two_processors_in_two_threads(model, tokenizer, store):
    """1,000 generations on one model: none mixed, all as when run one after another."""
    config = GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=0)
    encoded = [encode(tokenizer, [prompt]) for prompt in PROMPTS]

    def run(knn, number):
        inputs = encoded[number % len(encoded)]
        output = model.generate(**inputs, generation_config=config, logits_processor=[knn])
        trace = knn.trace(output, tokenizer, max_neighbors=1)
        return output.tolist(), [token.p for token in trace[0].tokens]

    with (
        KNNLogitsProcessor(model, store, k=8, lmbda=0.6, temperature=1.0) as one,
        KNNLogitsProcessor(model, store, k=32, lmbda=0.2, temperature=9.0) as other,
    ):
        expected = {
            id(knn): [run(knn, number) for number in range(len(encoded))] for knn in (one, other)
        }
        wrong = []

        def work(knn):
            for number in range(500):
                tokens, p = run(knn, number)
                want, want_p = expected[id(knn)][number % len(encoded)]
                if tokens != want or not np.allclose(p, want_p, rtol=1e-5):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(knn,)) for knn in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_one_processor_in_two_threads(model, tokenizer, knn):
    config = GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=0)
    encoded = [encode(tokenizer, [prompt]) for prompt in PROMPTS]
    expected = [
        model.generate(**inputs, generation_config=config, logits_processor=[knn]).tolist()
        for inputs in encoded
    ]
    wrong = []

    def work(shift):
        for number in range(80):
            place = (number + shift) % len(encoded)
            output = model.generate(
                **encoded[place], generation_config=config, logits_processor=[knn]
            )
            if output.tolist() != expected[place] or not knn.trace(output, tokenizer)[0].tokens:
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


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
