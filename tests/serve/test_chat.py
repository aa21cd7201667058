"""Chats: templates, streams, probabilities, and models that answer a source."""

import copy

import pytest

from knn_logits_serve.bodies import ChatBody, Refusal
from knn_logits_serve.served import Served
from serve.conftest import PROMPT, serving

MODEL = "tiny+texts"
TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant', 'system'] %}"
    "{{ raise_exception('no ' + m.role) }}{% endif %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def said(*texts):
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]


def test_a_chat_without_a_template_goes_on_with_its_text(client, by_library):
    found = client.chat.completions.create(
        model=MODEL, messages=said(PROMPT), max_tokens=12, temperature=0
    )
    assert found.choices[0].message.content == by_library()[0].lstrip()
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].sources["documents"]
    parts = [{"type": "text", "text": PROMPT[:9]}, {"type": "text", "text": PROMPT[9:]}]
    again = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], max_completion_tokens=12
    )
    assert again.choices[0].message.content == found.choices[0].message.content


def test_only_an_answer_that_goes_on_with_a_text_begins_with_a_blank(client):
    def begin(messages):
        request = {"model": MODEL, "messages": messages, "max_tokens": 6}
        return client.chat.completions.create(**request).choices[0]

    text = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6).choices[0].text
    answer = begin(said(PROMPT))
    assert answer.message.content == text[1:] == text.lstrip()
    for span in answer.sources["spans"]:
        assert answer.message.content[span["start"] : span["end"]] == span["text"]
    first, rest = PROMPT.split(" ", 1)
    assert begin(said(first, f" {rest}")).message.content == text


def test_an_answer_without_a_number_of_tokens_fits(model, tokenizer, store):
    served = Served("tiny", model, tokenizer, {"texts": store})
    asked = served.conversation(ChatBody(model="tiny", messages=said("crane " * 100)))
    assert asked.new_tokens == 256 - len(asked.prompts[0].ids)


def templated(model, tokenizer, store, template=TEMPLATE, **settings):
    own = copy.deepcopy(tokenizer)
    own.chat_template = template
    return Served("tiny", model, own, {"texts": store}, **settings)


def test_the_tokenizers_template_makes_the_prompt(model, tokenizer, store, openai, by_library):
    served = templated(model, tokenizer, store)
    assert not served.chat.plain
    with serving(served) as running, running.client() as client:
        chat = [{"role": "developer", "content": "Be short."}, *said("Where?", "There.", "When?")]
        found = client.chat.completions.create(model=MODEL, messages=chat, max_tokens=8)
        text = "<system>Be short.\n<user>Where?\n<assistant>There.\n<user>When?\n<assistant>"
        assert found.choices[0].message.content == by_library(text, 8)[0].lstrip()


STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('users and assistants by turns') }}{% endif %}<{{ m.role }}>"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_strict_template_gets_the_turns_that_it_accepts(model, tokenizer, store):
    served = templated(model, tokenizer, store, STRICT, asks=True)
    chat = [{"role": "system", "content": "Be short."}, *said("A?", "B."), *said("C?"), *said("D?")]
    chat.insert(1, {"role": "assistant", "content": "Hello."})
    request = served.conversation(ChatBody(model=MODEL, messages=chat))
    written = served.tokenizer.decode(request.prompts[0].ids)
    assert written.startswith("<user>Be short.\n<assistant>Hello.\n<user>A?")
    assert written.endswith("<assistant>B.\n<user>C?\n\nD?\n<assistant>")
    assert request.question == "D?"
    roles = [turn["role"] for turn in request.history]
    assert roles == ["user", "assistant"] * (len(roles) // 2)


def test_a_system_message_at_the_end_is_read_before_the_question(model, tokenizer, store):
    served = templated(model, tokenizer, store, asks=True)
    chat = [*said("A?", "B.", "C?"), {"role": "system", "content": "Be short."}]
    request = served.conversation(ChatBody(model=MODEL, messages=chat))
    written = served.tokenizer.decode(request.prompts[0].ids)
    assert written == "<user>A?\n<assistant>B.\n<system>Be short.\n<user>C?\n<assistant>"
    assert request.question == "C?"


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_old_turns_of_a_long_chat_are_left_out(model, tokenizer, store, template):
    served = templated(model, tokenizer, store, template)
    system = {"role": "system", "content": "Be short."}
    chat = [system, *said(*(f"{number} crane" for number in range(201)))]
    request = served.conversation(ChatBody(model=MODEL, messages=chat, max_tokens=50))
    (prompt,) = request.prompts
    assert 150 < len(prompt.ids) <= 256 - 50
    written = served.tokenizer.decode(prompt.ids)
    assert "Be short." in written
    assert "200 crane" in written
    assert " 2 crane" not in written
    with pytest.raises(Refusal, match="context of 256"):
        served.conversation(ChatBody(model=MODEL, messages=[system, *said("crane " * 400)]))


def test_a_template_that_says_no_is_told_in_one_line(model, tokenizer, store):
    served = templated(model, tokenizer, store, "{{ raise_exception('no such chat') }}")
    body = {"model": MODEL, "messages": [{"role": "system", "content": "b"}]}
    with pytest.raises(Refusal, match="no such chat"):
        served.conversation(ChatBody(**body))
