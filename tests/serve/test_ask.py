"""Chats that are asked of the documents: quoted, written, streamed, or continued."""

import copy

import pytest
from conftest import TEXTS

from knn_logits_serve.bodies import Message
from knn_logits_serve.messages import turns_of
from knn_logits_serve.served import Served
from serve.conftest import serving

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}Answer:"
QUESTION = "Which queen founded the town of Oldenport?"
MODEL = "tiny+texts"


@pytest.fixture(scope="module")
def asked(model, tokenizer, store):
    own = copy.deepcopy(tokenizer)
    own.chat_template = TEMPLATE
    served = Served("tiny", model, own, {"texts": store}, asks=True)
    with serving(served) as running, running.client() as client:
        yield client


def ask(client, text=QUESTION, model=MODEL, **settings):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=8, **settings)


def test_a_document_s_sentence_is_the_answer(asked):
    found = ask(asked).choices[0]
    assert found.message.content == TEXTS[2]
    assert found.finish_reason == "stop"
    sources = found.model_extra["sources"]
    assert (sources["answered"], sources["quoted"], sources["alone"]) == (True, True, False)
    assert sources["passages"][0]["document"] == "2"
    chunks = list(ask(asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXTS[2]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].model_extra["sources"] == sources


def test_the_nearest_sentences_are_no_answer(asked):
    question = "Which queen drank of the golden river in the morning?"
    found = ask(asked, question).choices[0]
    assert found.message.content.startswith("No passage clearly answers this.\n\n\u2060(Perhaps: “")
    sources = found.model_extra["sources"]
    assert (sources["answered"], sources["alone"]) == (False, False)
    streamed = ask(asked, question, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == found.message.content


def test_the_model_answers_alone_where_a_request_lets_it(asked):
    found = ask(asked, "Explain photosynthesis", extra_body={"outside": "model"}).choices[0]
    assert found.model_extra["sources"]["alone"]
    assert found.message.content.endswith("the model answers without the documents.)")


def test_chats_are_continued_where_that_is_asked_for(asked, openai):
    for settings in ({"extra_body": {"ask": False}}, {"model": "tiny"}):
        assert ask(asked, **settings).choices[0].message.content != TEXTS[2]
    with pytest.raises(openai.BadRequestError, match="ask needs a datastore"):
        ask(asked, model="tiny", extra_body={"ask": True})


def test_a_note_about_the_documents_is_no_part_of_the_chat(asked):
    """A model would write the like of it."""
    answer = ask(asked, "Which queen drank of the golden river?").choices[0].message.content
    (turn,) = turns_of([Message(role="assistant", content=answer)])
    assert turn["content"] == answer.partition("\n\n\u2060(Perhaps")[0] != answer
