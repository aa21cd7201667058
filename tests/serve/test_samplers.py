"""Further samplers: each does what transformers does, or is refused by its name."""

import pytest
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper

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


@pytest.mark.parametrize(
    ("field", "value", "nothing"),
    [
        ("typical_p", 0.5, 1.0), ("mirostat", 1, 0), ("repetition_penalty", 1.1, 1),
        ("logit_bias", {"5": 1}, {}), ("ignore_eos", True, False), ("best_of", 5, 1),
        ("guided_json", {"type": "object"}, None), ("stop_token_ids", [1], []),
        ("reasoning_effort", "high", "none"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name_unless_it_is_off(http, field, value, nothing):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1}
    answer = http.post("/v1/completions", json={**body, field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field} is not supported here")
    assert answer.json()["error"]["param"] == field
    assert http.post("/v1/completions", json={**body, field: nothing}).status_code == 200
