"""Generating in several threads gives what each gives alone."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from mixture_reference import PROMPTS, SETTINGS, check, encode
from transformers import GenerationConfig, TextIteratorStreamer


def test_streaming_from_another_thread(model, tokenizer, memory, knn):
    inputs = encode(tokenizer, PROMPTS[4:5])
    plain = model.generate(**inputs, **SETTINGS, do_sample=False, logits_processor=[knn])
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    settings = SETTINGS | {"do_sample": False, "streamer": streamer, "logits_processor": [knn]}
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(model.generate, **inputs, **settings)
        text = "".join(streamer)
        output = writing.result()
    assert output.sequences.tolist() == plain.sequences.tolist()
    trace = knn.trace(output, tokenizer)
    assert text.startswith(trace[0].text.removesuffix("<|endoftext|>"))
    check(model, memory, output, knn, tokenizer, inputs["input_ids"].shape[1])


@pytest.fixture
def often():
    """Threads take turns much more often than usual, so that few generations show a mix."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("number", [20, pytest.param(80, marks=pytest.mark.soak)])
def test_one_processor_in_two_threads(model, tokenizer, knn, number):
    config = GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=0)
    encoded = [encode(tokenizer, [prompt]) for prompt in PROMPTS]
    expected = [
        model.generate(**inputs, generation_config=config, logits_processor=[knn]).tolist()
        for inputs in encoded
    ]
    wrong = []

    def work(shift):
        for turn in range(number):
            place = (turn + shift) % len(encoded)
            output = model.generate(
                **encoded[place], generation_config=config, logits_processor=[knn]
            )
            if output.tolist() != expected[place] or not knn.trace(output, tokenizer)[0].tokens:
                wrong.append(place)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, (0, 3)))
    assert wrong == []
