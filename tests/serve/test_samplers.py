"""Further samplers: each does what transformers does, or is refused by its name."""

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper

from knn_logits_serve.decoding import Penalties, Repetition
from knn_logits_serve.request import Sampling
from serve.conftest import PROMPT

MODEL = "tiny+texts"


def write(client, model=MODEL, **settings):
    request = {"model": model, "prompt": PROMPT, "max_tokens": 24}
    openais = {name: settings.pop(name) for name in ("temperature", "seed") if name in settings}
    return client.completions.create(**request, **openais, extra_body=settings).choices[0].text


@pytest.mark.parametrize(
    ("settings", "warper"),
    [({"top_k": 3}, TopKLogitsWarper(3)), ({"min_p": 0.2}, MinPLogitsWarper(0.2))],
)
def test_a_sampler_is_that_of_transformers(client, by_library, settings, warper):
    warpers = [TemperatureLogitsWarper(1.7), warper]
    text = by_library(PROMPT, 24, seed=5, warpers=warpers)[0]
    assert write(client, temperature=1.7, seed=5, **settings) == text
    assert write(client, temperature=1.7, seed=5) != text


def test_a_sampler_alone_means_that_tokens_are_drawn(client):
    assert write(client, top_k=1) == write(client) == write(client, top_k=1, min_p=1.0)
    assert write(client, top_k=0, seed=1) == write(client, temperature=1.0, seed=1)
    assert write(client, top_k=-1, seed=1) == write(client, temperature=1.0, seed=1)


def test_the_repetition_penalty_is_that_of_transformers(client, model, tokenizer):
    ids = tokenizer(PROMPT, return_tensors="pt")
    with torch.no_grad():
        output = model.generate(
            **ids, max_new_tokens=24, do_sample=False, repetition_penalty=1.3, pad_token_id=0
        )
    text = tokenizer.decode(output[0, ids["input_ids"].shape[1] :]).rstrip("\ufffd")
    assert write(client, "tiny", repetition_penalty=1.3) == text
    assert write(client, "tiny") != text


def test_the_repetition_penalty_holds_for_the_memory_too(client):
    """What it takes from a logit of the model is taken from the mixture's log-probability."""
    ids, logits = torch.tensor([[1, 3]]), torch.tensor([[5.0, 4.0, 1.0, -2.0]])
    mixture = torch.tensor([[0.1, 0.6, 0.1, 0.2]]).log()
    repetition = Repetition(2.0)
    assert repetition.before(ids, logits) is logits
    taken = torch.tensor([[0.0, -2.0, 0.0, -2.0]])
    torch.testing.assert_close(repetition(ids, mixture), mixture + taken)
    strong = {"lmbda": 0.95, "k": 4, "temperature": 0.05}
    assert write(client, knn=strong, repetition_penalty=100.0) != write(client, knn=strong)


@pytest.mark.parametrize(
    ("field", "value", "nothing"),
    [
        ("typical_p", 0.5, 1.0), ("mirostat", 2, 0), ("min_tokens", 5, 0), ("top_a", 0.2, 0),
        ("repeat_penalty", 1.1, 1.0), ("use_beam_search", True, False), ("ignore_eos", True, False),
        ("no_repeat_ngram_size", 3, 0), ("guided_json", {"type": "object"}, None),
        ("structured_outputs", {"regex": "a"}, None), ("stop_token_ids", [1], []),
        ("reasoning_effort", "high", "none"), ("verbosity", "low", "medium"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name_unless_it_is_off(http, field, value, nothing):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1}
    answer = http.post("/v1/completions", json={**body, field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field} is not supported here")
    assert answer.json()["error"]["param"] == field
    assert http.post("/v1/completions", json={**body, field: nothing}).status_code == 200


def test_processors_of_a_row_agree_on_where_its_prompt_ends():
    penalties = Penalties(Sampling(frequency=1.0))
    scores = torch.zeros(1, 4)
    assert penalties(torch.tensor([[1, 1]]), scores).tolist() == [[0, 0, 0, 0]]
    assert penalties(torch.tensor([[1, 1, 3, 1, 3]]), scores).tolist() == [[0, -1, 0, -2]]
    assert penalties.written(torch.tensor([[1, 1, 2]])).tolist() == [2]
