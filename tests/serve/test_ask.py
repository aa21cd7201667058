"""Chats that are asked of the documents: quoted, written, streamed, or continued."""

import copy

import pytest
from conftest import TEXTS

from serve.conftest import serving

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}Answer:"
QUESTION = "Which queen founded the town of Oldenport?"
MODEL = "tiny+texts"
pytestmark = pytest.mark.usefixtures("near_passages")


@pytest.fixture(scope="module")
def asked(model, tokenizer, store):
    from knn_logits_serve import Served

    own = copy.deepcopy(tokenizer)
    own.chat_template = TEMPLATE
    served = Served("tiny", model, own, {"texts": store}, asks=True)
    with serving(served) as running, running.client() as client:
        yield client


def ask(client, text=QUESTION, model=MODEL, **settings):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=8, **settings)


def test_a_document_s_sentence_is_the_answer(asked):
    found = ask(asked)
    assert found.choices[0].message.content == TEXTS[2]
    assert found.choices[0].finish_reason == "stop"
    sources = found.choices[0].model_extra["sources"]
    assert (sources["near"], sources["answered"], sources["quoted"]) == (True, True, True)
    assert sources["passages"][0]["document"] == "2"
    assert found.usage.completion_tokens > 8


def test_a_stream_has_the_same_text_and_ends_with_the_sources(asked):
    chunks = list(ask(asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXTS[2]
    sources = chunks[-1].choices[0].model_extra["sources"]
    assert sources["answered"]
    # They come with the words, and again at the end.
    (words,) = [chunk.choices[0] for chunk in chunks if chunk.choices[0].delta.content]
    assert words.model_extra["sources"] == sources


def test_the_model_alone_is_said_to_be_alone(asked):
    found = ask(asked, "Explain photosynthesis").choices[0]
    assert found.message.content.endswith("(No document is about this: the model answers alone.)")
    assert found.model_extra["sources"]["alone"]
    streamed = ask(asked, "Explain photosynthesis", stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == found.message.content


def test_chats_are_continued_where_that_is_asked_for(asked):
    for settings in ({"extra_body": {"ask": False}}, {"model": "tiny"}, {"logprobs": True}):
        assert ask(asked, **settings).choices[0].message.content != TEXTS[2]


def test_a_question_that_cannot_be_asked_is_refused(asked):
    from openai import BadRequestError

    with pytest.raises(BadRequestError, match="ask needs a datastore"):
        ask(asked, model="tiny", extra_body={"ask": True})
