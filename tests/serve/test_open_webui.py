"""The dialect of Open WebUI: events between the chunks, numbers in the text, its own requests."""

import json
import re

import missing
import pytest

from knn_logits_serve.open_webui import task_answer
from serve.conftest import PROMPT

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
    assert not re.search(r"""(src|href)=["']?(http|//)|@import|url\(""", page)
    content = re.search(r'id="content">(.*?)</script>', page, re.DOTALL)[1]
    side = json.loads(content)["sides"]["knn"]
    assert "".join(one["token"] for one in side["trace"]["tokens"])
    assert any(one["neighbors"] for one in side["trace"]["tokens"])


def test_text_of_others_is_escaped_in_the_page(chromium_page):
    from knn_logits import SequenceTrace, TokenTrace
    from knn_logits.evidence.trace import DocumentShare, NeighborTrace
    from knn_logits_app.views import chat_page as frame

    bad = "<img src=x onerror=window.pwned=1>"
    share = DocumentShare("s", bad, bad, "javascript:window.pwned=1", 0.9)
    neighbor = NeighborTrace(bad, " word", bad, bad, bad, None, "s", 1, 0.9, 0.1, 0.9)
    token = TokenTrace(" word", 1, 0.9, 0.1, 1.0, 0.9, 0.9, [neighbor], documents=[share])
    script = TokenTrace(f" {bad}</script>", 2, 0.9, 0.1, 1.0, 0.9, 0.9, [], documents=[share])
    page = chromium_page
    page.set_content(frame(SequenceTrace(bad, [token, script])))
    page.get_by_role("button", name="word", exact=True).click()
    assert page.locator(".kl-panel:visible mark").inner_text() == "word"
    assert page.get_by_role("button", name="word", exact=True).get_attribute("aria-expanded")
    page.keyboard.press("Escape")
    assert page.locator(".kl-panel:visible").count() == 0
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0


@pytest.fixture
def chromium_page():
    with missing.browser() as browser:
        yield browser.new_page()


def test_numbers_of_earlier_answers_are_no_words_of_the_chat(http):
    def ask(*contents):
        roles = ("user", "assistant", "user")
        pairs = zip(roles, contents, strict=True)
        messages = [{"role": role, "content": content} for role, content in pairs]
        answer = http.post(CHAT, json=asked(messages=messages, stream=False)).json()
        return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]

    without = ask("The crane", " lifts [7] crates.", "The pump")
    assert ask("The crane", " lifts [7] crates.\u2060[1]", "The pump") == without


def test_its_own_requests_ask_no_model_that_never_chats(http, served, monkeypatch):
    monkeypatch.setattr(served.model, "generate", None)
    message = {"role": "user", "content": TITLE}
    body = asked(messages=[message], stream=False, max_tokens=1000)
    answer = http.post(CHAT, json=body).json()
    title = json.loads(answer["choices"][0]["message"]["content"])
    assert title == {"title": "When error code E42 appears, what …"}
    for field, task in (("tags", "Generate 1-3 broad tags"), ("follow_ups", "Suggest questions")):
        wish = f'{{ "{field}": ["a"] }}'
        message["content"] = f"### Task:\n{task}\n{wish}\n<chat_history></chat_history>"
        answer = http.post(CHAT, json=body).json()
        assert json.loads(answer["choices"][0]["message"]["content"]) == {field: []}


def test_its_own_requests_ask_a_chat_model_without_the_datastore(model, tokenizer, store):
    from knn_logits_serve.line import Line
    from knn_logits_serve.routes import Routes
    from serve.test_chat import templated

    served = templated(model, tokenizer, store)
    routes = Routes(served, Line.__new__(Line))
    task = {"role": "user", "content": '### Task: "title"'}
    body = asked(messages=[task], stream=False)
    assert routes.open_webui(json.dumps(body).encode()).request.stores == ()
    body = asked(messages=[task])
    wanted = routes.open_webui(json.dumps(body).encode()).request
    assert wanted.stores == ("texts",)
    # Only an answer that is drawn needs the likeliest other tokens.
    assert wanted.drawn
    assert not routes.conversation(json.dumps(body).encode()).request.drawn


def test_words_in_a_row_from_one_document_have_one_number():
    from types import SimpleNamespace

    from knn_logits_serve.answers import Span
    from knn_logits_serve.open_webui import numbered

    def span(start, end, name):
        document = SimpleNamespace(store="s", document=name)
        return Span(start, end, SimpleNamespace(document=document))

    text = "one two three four"
    spans = [span(0, 3, "a"), span(4, 7, "a"), span(8, 13, "b")]
    found = numbered(text, spans, {("s", "a"): 1, ("s", "b"): 2})
    assert found == "one two\u2060[1] three\u2060[2] four"


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
    assert json.loads(task_answer(f"### Task:\n{task}")) == {"title": "Chat"}
