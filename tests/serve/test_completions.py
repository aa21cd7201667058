"""Completions through OpenAI's own client, compared with what the library writes."""

import math

import pytest
import torch
from gate_cases import Curve
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from knn_logits import explain
from knn_logits.mixture.presets import resolve_settings
from knn_logits_serve.bodies import CompletionBody
from knn_logits_serve.served import Served
from knn_logits_serve.writing import echo_of
from serve.conftest import PROMPT

MODEL = "tiny+texts"


def test_the_models_are_the_model_and_its_datastores(client):
    found = {one.id: one.datastores for one in client.models.list()}
    assert found == {"tiny+texts": ["texts"], "tiny": []}
    assert client.models.retrieve("tiny+texts").id == "tiny+texts"


@pytest.mark.parametrize("name", ["tiny+texts", "tiny"])
def test_a_greedy_text_is_the_librarys(client, by_library, name):
    found = client.completions.create(model=name, prompt=PROMPT, max_tokens=12, temperature=0)
    text, ids, _ = by_library(knn=name == MODEL)
    assert found.choices[0].text == text
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == len(ids) == 12
    assert found.usage.total_tokens == found.usage.prompt_tokens + 12
    assert by_library(knn=True)[0] != by_library(knn=False)[0]


@pytest.mark.parametrize("seed", [0, -3, 2**62])
def test_a_drawn_text_is_the_librarys_for_its_seed(client, by_library, seed):
    def ask(temperature, **settings):
        asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "seed": seed}
        found = client.completions.create(**asked, temperature=temperature, extra_body=settings)
        return found.choices[0].text

    assert ask(1) == by_library(seed=seed)[0]
    for settings, warper in (
        ({"top_p": 0.9}, TopPLogitsWarper(0.9)),
        ({"top_k": 3}, TopKLogitsWarper(3)),
        ({"min_p": 0.2}, MinPLogitsWarper(0.2)),
    ):
        warpers = [TemperatureLogitsWarper(1.7), warper]
        assert ask(1.7, **settings) == by_library(seed=seed, warpers=warpers)[0]
    # A sampler alone means that tokens are drawn.
    assert ask(None, top_k=-1) == ask(1)
    assert ask(None, top_k=1) == ask(0)


def test_several_prompts_have_their_own_choices(client, by_library, tokenizer):
    prompts = [PROMPT, "The pump needs oil"]
    found = client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=6, temperature=1, seed=5
    )
    wanted = [by_library(one, 6, seed=5 + place)[0] for place, one in enumerate(prompts)]
    assert [one.text for one in found.choices] == wanted
    texts = [by_library(one, 6)[0] for one in prompts]
    ids = tokenizer(prompts)["input_ids"]
    by_ids = client.completions.create(model=MODEL, prompt=ids, max_tokens=6)
    assert [one.text for one in by_ids.choices] == texts
    one = client.completions.create(model=MODEL, prompt=ids[0], max_tokens=6)
    assert one.choices[0].text == texts[0]


def test_a_stream_says_what_the_whole_answer_says(client):
    prompts = [PROMPT, "The pump needs oil"]
    asked = {"model": MODEL, "prompt": prompts, "max_tokens": 12, "temperature": 1, "seed": 3}
    whole = client.completions.create(**asked, logprobs=2)
    stream = client.completions.create(
        **asked, logprobs=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.usage == whole.usage
    choices = [choice for chunk in chunks for choice in chunk.choices]
    for one in whole.choices:
        mine = [choice for choice in choices if choice.index == one.index]
        assert "".join(choice.text for choice in mine) == one.text
        assert (mine[-1].finish_reason, mine[-1].sources) == (one.finish_reason, one.sources)
        told = [choice.logprobs.tokens for choice in mine if choice.logprobs]
        assert [token for tokens in told for token in tokens] == one.logprobs.tokens


def test_the_probabilities_are_the_mixtures(client, by_library):
    found = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6, logprobs=3)
    told = found.choices[0].logprobs
    text, ids, scores = by_library(new_tokens=6)
    assert "".join(told.tokens) == text
    for place, (token, row) in enumerate(zip(ids, scores, strict=True)):
        mixture = torch.log_softmax(row[0], dim=-1)
        assert told.token_logprobs[place] == pytest.approx(float(mixture[token]), abs=1e-5)
        best = mixture.topk(3)
        assert max(told.top_logprobs[place].values()) == pytest.approx(
            float(best.values[0]), abs=1e-5
        )
    assert client.completions.create(model=MODEL, prompt=PROMPT).choices[0].logprobs is None


@pytest.mark.parametrize("name", ["tiny+texts", "tiny"])
def test_an_echo_has_the_prompts_probabilities(client, model, tokenizer, store, name):
    """What evaluation harnesses ask for: the prompt scored, one token written or none."""
    asked = {"model": name, "prompt": PROMPT, "echo": True}
    found = client.completions.create(**asked, max_tokens=0, logprobs=1).choices[0]
    told = found.logprobs
    assert found.text == "".join(told.tokens) == PROMPT
    assert told.token_logprobs[0] is None
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    if name == "tiny":
        with torch.no_grad():
            rows = model(ids).logits[0].log_softmax(-1)
        wanted = rows[:-1].gather(-1, ids[0, 1:, None])[:, 0].tolist()
    else:
        config, _ = resolve_settings(store)
        numbers = {"k": config.k, "lmbda": config.lmbda, "temperature": config.temperature}
        trace = explain(model, tokenizer, store, PROMPT, **numbers)
        wanted = torch.tensor([one.p for one in trace[0].tokens]).log().tolist()
    assert told.token_logprobs[1:] == pytest.approx(wanted, abs=1e-4)
    longer = client.completions.create(**asked, max_tokens=3).choices[0]
    assert longer.text.startswith(PROMPT)
    for span in longer.sources["spans"] if name == MODEL else ():
        assert longer.text[span["start"] : span["end"]] == span["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_ends_before_a_stop(client, by_library, stream):
    text = by_library(new_tokens=24)[0]
    stop = text[9:12]
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "stop": [stop, "\x01"]}
    if stream:
        chunks = list(client.completions.create(**asked, stream=True))
        found = "".join(chunk.choices[0].text for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = client.completions.create(**asked).choices[0]
        found, reason = choice.text, choice.finish_reason
        for span in choice.sources["spans"]:
            assert found[span["start"] : span["end"]] == span["text"]
    assert found == text[: text.index(stop)]
    assert reason == "stop"


def test_an_echo_of_ids_is_scored_by_these_ids(client, tokenizer):
    """Evaluation harnesses send the first token themselves, which no text is cut into."""
    ids = tokenizer(PROMPT)["input_ids"]
    asked = {"model": MODEL, "max_tokens": 0, "echo": True, "logprobs": 1}
    text = client.completions.create(**asked, prompt=PROMPT).choices[0].logprobs
    same = client.completions.create(**asked, prompt=ids).choices[0].logprobs
    assert same.token_logprobs == text.token_logprobs
    begun = client.completions.create(**asked, prompt=[0, *ids]).choices[0].logprobs
    assert len(begun.token_logprobs) == len(ids) + 1
    assert None not in begun.token_logprobs[1:]


def test_an_echo_is_scored_with_the_servers_gate(model, tokenizer, explain, store):
    gate = Curve(store.manifest.metric, [0.0, 1e6], [0.9, 0.1])
    served = Served("tiny", model, tokenizer, {"texts": store}, lmbda=gate)
    ids = tokenizer(PROMPT)["input_ids"]
    body = {"model": "tiny+texts", "prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}
    asked = served.completion(CompletionBody(**body))
    tokens = echo_of(served, asked, asked.prompts[0], served.memory_of(asked))
    names = ("k", "temperature", "suffix_weight")
    settings = {name: getattr(served.memory.config, name) for name in names}
    trace = explain(store, PROMPT, lmbda=gate, **settings)[0]
    assert len(tokens) == len(ids)
    expected = [math.log(token.p) for token in trace.tokens]
    assert [token.logprob for token in tokens[1:]] == pytest.approx(expected, abs=1e-4)
