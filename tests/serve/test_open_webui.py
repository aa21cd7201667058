"""The dialect of Open WebUI: events between the chunks, numbers in the text, its own requests."""

import json
import re

import pytest

from knn_logits_app.requests import is_web
from knn_logits_serve.open_webui import _source, title_of
from knn_logits_serve.routes import Routes
from serve.conftest import PROMPT
from serve.test_chat import templated

CHAT = "/open-webui/v1/chat/completions"
STRONG = {"lmbda": 0.95, "k": 4, "temperature": 0.05}
TITLE = """### Task:
Generate a concise title summarizing the chat history.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: When error code E42 appears, what is to be opened?
ASSISTANT: The winch cover.
</chat_history>"""


def asked(**changed):
    message = {"role": "user", "content": PROMPT}
    body = {"model": "tiny+texts", "messages": [message], "max_tokens": 16, "temperature": 0}
    return {**body, "knn": STRONG, "stream": True, **changed}


@pytest.fixture(scope="module")
def events(http):
    answer = http.post(CHAT, json=asked())
    lines = [one.removeprefix("data: ") for one in answer.text.split("\n\n") if one]
    assert lines.pop() == "[DONE]"
    return [json.loads(one) for one in lines]


def text_of(events):
    return "".join(
        one["choices"][0]["delta"].get("content", "") for one in events if "choices" in one
    )


def test_the_text_streams_as_for_everybody(events, http):
    plain = http.post("/v1/chat/completions", json=asked(stream=False)).json()["choices"][0]
    assert text_of(events) == plain["message"]["content"]
    assert events[-1]["choices"][0]["finish_reason"] == plain["finish_reason"]
    both = http.post("/v1/chat/completions", json=asked())
    assert '"event"' not in both.text


def test_each_place_in_a_document_is_a_source(events):
    sources = [
        one["event"]["data"] for one in events if one.get("event", {}).get("type") == "source"
    ]
    assert sources
    for source in sources:
        assert source["source"]["name"]
        assert len(source["document"]) == len(source["metadata"])
        assert len({json.dumps(one) for one in source["metadata"]}) == 1
    assert len({one["metadata"][0]["source"] for one in sources}) == len(sources)


def test_the_coloured_words_are_a_page_of_their_own(events):
    (embeds,) = [one["event"]["data"]["embeds"] for one in events
                 if one.get("event", {}).get("type") == "embeds"]  # fmt: skip
    (page,) = embeds
    assert page.startswith("<!doctype html>")
    assert "<details><summary>Where each word comes from</summary>" in page
    assert not re.search(r"""(src|href)=["']?(http|//)|@import|url\(""", page)
    content = re.search(r'id="content">(.*?)</script>', page, re.DOTALL)[1]
    side = json.loads(content)["sides"]["knn"]
    assert "".join(one["token"] for one in side["trace"]["tokens"])
    assert any(one["neighbors"] for one in side["trace"]["tokens"])


TASKS = {
    "title": (TITLE, "When error code E42 appears, what is to be opened?"),
    "tags": ('### Task:\nGenerate 1-3 broad tags\n{ "tags": ["a"] }', []),
    "follow_ups": ('### Task:\nSuggest questions\n{ "follow_ups": ["a"] }', []),
}


@pytest.mark.parametrize("templated_model", [False, True])
@pytest.mark.parametrize("field", TASKS)
def test_its_own_requests_ask_no_model(
    model, tokenizer, store, served, templated_model, field, monkeypatch
):
    """A small model of chats copied the example of the task: "Your Concise Title Here"."""
    monkeypatch.setattr(served.model, "generate", None)
    served = templated(model, tokenizer, store) if templated_model else served
    routes = Routes(served)
    task, expected = TASKS[field]

    def answered(content, stream=False):
        body = asked(messages=[{"role": "user", "content": content}], stream=stream)
        return routes.open_webui(json.dumps(body).encode())

    answer = json.loads(answered(task).body)
    assert json.loads(answer["choices"][0]["message"]["content"]) == {field: expected}
    # A message that looks like a task is a message. Only a drawn answer needs other tokens.
    assert answered(task, stream=True).request.drawn
    assert not answered("### Task:\nAnswer with the context.").request.drawn


@pytest.mark.parametrize(
    "task",
    [
        "<chat_history>" + " " * 400_000 + "x",
        "<chat_history>" * 30_000,
        "<chat_history>\nUSER:" + "\n" * 400_000,
    ],
)
def test_a_long_history_of_blanks_or_openings_is_read_once(task):
    """Regular expressions that try each blank as a beginning took hours for these."""
    assert json.loads(title_of(f"### Task:\n{task}")) == {"title": "Chat"}


@pytest.mark.parametrize(
    ("uri", "web"),
    [
        *((uri, True) for uri in ("https://example.org/a", "Http://[::1]/a")),
        *((uri, False) for uri in ("https:example.org", "https://[", " https://example.org")),
        *((uri, False) for uri in ("javascript://example.org/%0aalert(1)", "data:text/html,x")),
        *((uri, False) for uri in ("", None)),
    ],
)
def test_only_addresses_of_the_web_are_links(uri, web):
    listed = _source("texts", "A title", uri, ["Words"])["event"]["data"]["source"]["url"]
    assert is_web(uri) is web
    assert listed == (uri if web else "")
