"""A GGUF file behind the server: streams with sources, samplers and JSON, as with transformers."""

import json

import jsonschema
import missing
import pytest
from conftest import TEXTS
from gguf_files import tiny, write_gguf

from knn_logits import Document, GGUFModel, build_datastore
from knn_logits_serve.served import Served
from serve.conftest import PROMPT, serving
from serve.test_response_format import FORM, SCHEMA

STRONG = {"lmbda": 0.95, "k": 4, "temperature": 0.05}


@pytest.fixture(scope="module")
def client(tokenizer, tmp_path_factory, openai):
    missing.llama_cpp()
    folder = tmp_path_factory.mktemp("served")
    model = GGUFModel(write_gguf(folder / "tiny.gguf", tiny("llama"), tokenizer))
    documents = [Document(text=text, id=f"d{number}") for number, text in enumerate(TEXTS * 2)]
    store = build_datastore(model, model.tokenizer, documents, folder / "store")
    served = Served("tiny", model, model.tokenizer, {"texts": store})
    with serving(served) as running, running.client() as found:
        yield found


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "seed": 3, "top_k": 40}], ids=str)
def test_json_matches_its_schema(client, settings):
    found = client.completions.create(
        model="tiny+texts",
        prompt=PROMPT,
        max_tokens=120,
        extra_body={"knn": STRONG, "response_format": FORM, **settings},
    ).choices[0]
    assert found.finish_reason == "stop"
    jsonschema.validate(json.loads(found.text), SCHEMA)


def test_bytes_of_tokens_are_those_of_their_text(client, tokenizer, tmp_path):
    other = GGUFModel(write_gguf(tmp_path / "tiny.gguf", tiny("llama"), tokenizer)).tokenizer
    text = "Über den Kran – 40 €"
    ids = other(text, add_special_tokens=False)["input_ids"]
    assert b"".join(map(other.bytes_of, ids)).decode() == text


def test_a_stream_names_its_documents(client):
    *_, last = client.completions.create(
        model="tiny+texts", prompt=PROMPT, max_tokens=8, stream=True, extra_body={"knn": STRONG}
    )
    assert last.choices[0].model_extra["sources"]["spans"]
