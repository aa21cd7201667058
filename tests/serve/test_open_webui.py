"""The dialect of Open WebUI: events between the chunks, numbers in the text, its own requests."""

import json
import re

import pytest

from knn_logits_app.requests import is_web
from knn_logits_serve.line import Line
from knn_logits_serve.open_webui import (
    _listed,
    numbered,
    title_of,
)
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


def test_each_document_is_a_source_and_its_number_stands_behind_its_words(events):
    sources = [
        one["event"]["data"] for one in events if one.get("event", {}).get("type") == "source"
    ]
    (whole,) = [one["part"]["text"] for one in events if one.get("type", "").endswith("part.done")]
    numbers = [int(one) for one in re.findall(r"\u2060\[(\d+)\]", whole)]
    assert numbers
    assert sorted(set(numbers)) == list(range(1, len(sources) + 1))
    assert re.sub(r"\u2060\[\d+\]", "", whole) == text_of(events)
    for source in sources:
        assert source["source"]["name"]
        assert len(source["document"]) == len(source["metadata"]) == len(source["distances"])
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


def test_numbers_of_earlier_answers_are_no_words_of_the_chat(http):
    def ask(*contents):
        roles = ("user", "assistant", "user")
        pairs = zip(roles, contents, strict=True)
        messages = [{"role": role, "content": content} for role, content in pairs]
        answer = http.post(CHAT, json=asked(messages=messages, stream=False)).json()
        return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]

    without = ask("The crane", " lifts [7] crates.", "The pump")
    assert ask("The crane", " lifts [7] crates.\u2060[1]", "The pump") == without


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
    routes = Routes(served, Line.__new__(Line))
    task, expected = TASKS[field]
    body = asked(messages=[{"role": "user", "content": task}], stream=False, max_tokens=1000)
    answer = json.loads(routes.open_webui(json.dumps(body).encode()).body)
    assert json.loads(answer["choices"][0]["message"]["content"]) == {field: expected}


def test_a_message_that_looks_like_a_task_is_a_message(served):
    routes = Routes(served, Line.__new__(Line))

    def request(content, stream):
        body = asked(messages=[{"role": "user", "content": content}], stream=stream)
        return routes.open_webui(json.dumps(body).encode()).request

    assert request("### Task:\nAnswer with the context.", False).stores == ("texts",)
    # Only an answer that is drawn needs the likeliest other tokens.
    assert request(TITLE, True).drawn
    assert not request("### Task: again", False).drawn


@pytest.mark.parametrize(
    ("text", "places", "expected"),
    [
        ("One two. Three four", [(3, 1)], "One two.[1] Three four"),
        ("One two. Three four", [(3, 1), (7, 1), (14, 2)], "One two.[1] Three four[2]"),
        ("One two. Three four", [(8, 1), (7, 2)], "One two.[1][2] Three four"),
        ("It is **E42.** Then", [(10, 1)], "It is **E42.**[1] Then"),
        ("- 3.5 mm\n- 4 mm", [(4, 1)], "- 3.5 mm[1]\n- 4 mm"),
        ("One two \n", [(3, 3)], "One two[3] \n"),
    ],
)
def test_numbers_stand_behind_whole_sentences(text, places, expected):
    assert numbered(text, places).replace("\u2060", "") == expected


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
    listed = _listed("texts", "A title", uri, ["Words"])["source"]["url"]
    assert is_web(uri) is web
    assert listed == (uri if web else "")
