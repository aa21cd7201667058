"""A GGUF file behind the server: streams with sources, as with transformers."""

import missing
import pytest
from conftest import TEXTS
from gguf_files import tiny, write_gguf

from knn_logits import Document, GGUFModel, build_datastore
from knn_logits_serve.served import Served
from serve.conftest import PROMPT, serving

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


def test_what_two_prompts_share_is_read_once_and_changes_no_text(client):
    shared = " ".join(TEXTS[:3])
    prompts = [shared, f"{shared} The pump", " ".join(TEXTS[3:6]), f"{shared} The pump"]
    _, kept, _, anew = (
        client.completions.create(model="tiny+texts", prompt=prompt, max_tokens=8).choices[0].text
        for prompt in prompts
    )
    assert kept == anew
