"""Requests whose prompts begin alike, as an editor's or a chat's do: each text is the library's."""

import pytest
from conftest import TEXTS

from knn_logits_serve.messages import plain_text

MODELS = ("tiny", "tiny+texts")


@pytest.fixture(scope="module")
def text(tokenizer):
    """Three pieces and 8 tokens."""
    return tokenizer.decode(tokenizer(" ".join(TEXTS))["input_ids"][:200])


@pytest.fixture
def read(served):
    """The numbers of tokens of the passes that read more than one."""
    found = []

    def note(_, args, given):
        if given["input_ids"].shape[1] > 1:
            found.append(given["input_ids"].shape[1])

    handle = served.model.register_forward_pre_hook(note, with_kwargs=True)
    yield found
    handle.remove()


def test_an_editor_that_goes_on_gets_the_librarys_texts(client, by_library, text, read):
    prompts = [text, f"{text} The pump", text[: len(text) * 49 // 50], f"{text} The pump"]
    for name in MODELS:
        for place, prompt in enumerate([*prompts, "The pump", *prompts]):
            asked = {"model": name, "prompt": prompt, "max_tokens": 8, "seed": place}
            read.clear()
            found = client.completions.create(**asked, temperature=1).choices[0].text
            assert (64 in read) == (name == MODELS[0] and place == 0)
            assert found == by_library(prompt, 8, seed=place, knn=name != "tiny")[0]


def test_a_text_that_was_stopped_leaves_the_prompt_and_one_that_failed_nothing(
    served, client, openai, by_library, text, read
):
    whole = by_library(text, 12)[0]
    asked = {"model": "tiny+texts", "prompt": text, "max_tokens": 12}
    stopped = client.completions.create(**asked, stop=whole[3:5]).choices[0].text
    assert stopped == whole[: whole.index(whole[3:5])]
    read.clear()
    assert client.completions.create(**asked).choices[0].text == whole
    assert 64 not in read

    def fails(*_):
        raise RuntimeError("out of memory")

    handle = served.model.transformer.h[1].register_forward_pre_hook(fails)
    with pytest.raises(openai.InternalServerError):
        client.completions.create(**asked)
    handle.remove()
    assert client.completions.create(**asked).choices[0].text == whole
    assert 64 in read


def test_a_chat_that_goes_on_reads_what_is_new(client, by_library, text, read):
    said = [{"role": "user", "content": text}]
    asked = {"model": "tiny+texts", "max_tokens": 8, "temperature": 0}
    first = client.chat.completions.create(messages=said, **asked).choices[0].message.content
    said += [{"role": "assistant", "content": first}, {"role": "user", "content": "The pump"}]
    read.clear()
    second = client.chat.completions.create(messages=said, **asked).choices[0].message.content
    assert 64 not in read
    assert second == by_library(plain_text(said), 8)[0].lstrip()
