"""Answers in JSON: they match the schema, whatever the memory and the sampler prefer."""

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

from knn_logits_serve import grammar, schemas
from serve.conftest import PROMPT

pytest.importorskip("llguidance", reason="pip install 'knn-logits[serve]'")
MODEL = "tiny+texts"
STRONG = {"lmbda": 0.95, "k": 4, "temperature": 0.05}
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["crane", "pump"]},
        "codes": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 2},
        "open": {"type": "boolean"},
    },
    "required": ["kind", "codes", "open"],
    "additionalProperties": False,
}


def of_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}


FORM = of_schema(SCHEMA)
LOOP = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


def answer(client, form=FORM, model=MODEL, **settings):
    extra = {"knn": STRONG if model == MODEL else False, **settings.pop("extra_body", {})}
    return client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        response_format=form,
        max_tokens=120,
        extra_body=extra,
        **settings,
    )


@pytest.mark.parametrize("name", ["tiny", MODEL])
def test_an_answer_matches_its_schema(client, name):
    for settings in ({}, {"temperature": 1.5, "seed": 1}):
        found = answer(client, model=name, **settings).choices[0]
        assert found.finish_reason == "stop"
        jsonschema.validate(json.loads(found.message.content), SCHEMA)
        chunks = list(answer(client, model=name, **settings, stream=True))
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert streamed == found.message.content


def test_an_answer_that_goes_round_in_circles_is_not_cut(client):
    """Its loop would end it before the last brace."""
    schema = {"type": "array", "items": {"const": 7}, "minItems": 30, "maxItems": 30}
    assert json.loads(answer(client, form=of_schema(schema)).choices[0].message.content) == [7] * 30


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ({"type": "json_schema"}, "needs a schema"),
        ({"type": "xml"}, "response_format"),
        (of_schema({"type": "robot"}), "cannot be followed"),
        (of_schema({"$ref": "http://a/b"}), "cannot be followed"),
        (of_schema({"type": "string", "not": {}}), "cannot be followed"),
        (of_schema(LOOP), "cannot be followed"),
        (of_schema({"enum": [f"value {number}" for number in range(20_000)]}), "too large"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_a_schema_that_cannot_be_followed_is_refused(client, openai, form, line):
    with pytest.raises(openai.BadRequestError, match=line):
        answer(client, form=form)


def test_without_the_library_it_is_refused_in_one_line(client, openai, monkeypatch):
    monkeypatch.setattr(grammar, "find_spec", lambda _: None)
    with pytest.raises(openai.BadRequestError, match=r"pip install knn-logits\[serve\]"):
        answer(client)


def test_a_schema_that_takes_long_to_compile_is_refused_and_keeps_nobody_waiting(
    client, openai, http, monkeypatch
):
    """Each of six such requests held one of asyncio's threads for hours, which were all."""
    monkeypatch.setattr(schemas, "CPU_SECONDS", 1)
    hostile = {"type": "integer", "multipleOf": 9999991}

    def refused(_):
        with pytest.raises(openai.BadRequestError, match="too much time or memory"):
            answer(client, form=of_schema(hostile))

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(refused, number) for number in range(3)]
        assert http.get("/health").json()["status"] == "ok"
        jsonschema.validate(json.loads(answer(client).choices[0].message.content), SCHEMA)
        for one in asked:
            one.result()
