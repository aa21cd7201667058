"""The chat in a browser: questions in turns, their answers, and the passages behind them."""

import copy
import threading

import httpx
import pytest
from conftest import TEXTS
from office_files import pdf

from app.conftest import PATIENCE, eventually, expect, serving
from app.payloads import PAYLOADS
from knn_logits import Asking, Document, Limits, build_datastore
from knn_logits_app.library import Library
from knn_logits_app.visitors import Quotas

QUEEN = "Which queen founded the town of Oldenport?"
MISSING = "Who paints the harbour gate valve lock?"
GENERAL = "Explain photosynthesis"
ALONE = "No document is about this: the model answers alone."
OPEN_ALL = "document.querySelectorAll('#chat details').forEach((one) => { one.open = true; })"
OPTIONS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"], "resultTypes": ["violations"]}


@pytest.fixture(scope="module", autouse=True)
def near():
    """Lets every ranked passage be about the question, which a model of random weights denies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("knn_logits.ask.asking.gain", lambda *_: 1.0)
        yield


@pytest.fixture(scope="module")
def chat_page(model, tokenizer, store, tmp_path_factory):
    """The page of a model with a chat template, with the texts and with hostile documents."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}Answer:"
    hostile = [
        Document(f"Sign {number} reads {payload} today.", payload, title=payload, uri=payload)
        for number, payload in enumerate(PAYLOADS[::3])
    ]
    hostile.append(
        Document("The ferry leaves Oldenport at noon.", "ferry", uri="https://example.org/ferry")
    )
    signs = build_datastore(model, own, hostile, tmp_path_factory.mktemp("chat") / "signs")
    library = Library.of("tiny", model, own, [store, signs])
    with serving(library, limits=Limits(256, 24, seconds=600)) as served:
        yield served


class Chat:
    """A conversation on an open page."""

    def __init__(self, one):
        self.visit, self.page = one, one.page
        self.box = self.page.get_by_label("Your question")
        self.log = self.page.get_by_role("list", name="The conversation")

    def turn(self, number=-1):
        """A turn; the last one if no number is given."""
        turns = self.page.locator("#chat .kl-log > li")
        return turns.last if number < 0 else turns.nth(number)

    def send(self, question):
        self.box.fill(question)
        self.box.press("Enter")
        expect(self.turn().locator(".kl-question")).to_have_text(question)

    def ask(self, question):
        """Sends a question, and waits for the whole answer."""
        self.send(question)
        expect(self.page.locator("#chat .kl-log")).to_have_attribute("aria-busy", "false")
        return self.turn().locator(".kl-reply")


@pytest.fixture
def chat(visit, chat_page):
    return Chat(visit(url=chat_page[0]))


@pytest.fixture
def held(chat_page, monkeypatch):
    """The search for passages waits until it is let go, so that no answer comes before a click."""
    find, go = Asking.find, threading.Event()

    def slow(self, query):
        if "Oldenport" in query:
            go.wait(PATIENCE)
        return find(self, query)

    monkeypatch.setattr(Asking, "find", slow)
    yield go
    go.set()


def test_the_first_tab_is_the_chat_and_a_quotation_opens_its_passage_by_keys(chat):
    page = chat.page
    first = page.get_by_role("tab").first
    expect(first).to_have_text("Chat")
    expect(first).to_have_attribute("aria-selected", "true")
    expect(page.locator("#chat .kl-start")).to_contain_text("Ask about the documents")
    reply = chat.ask(QUEEN)
    expect(reply.locator("blockquote.kl-quoted")).to_have_text(f"“{TEXTS[2]}”")
    expect(page.locator("#chat .kl-start")).to_have_text("")
    expect(chat.box).to_have_value("")
    source = reply.locator("details")
    expect(source).to_have_count(1)
    expect(source.locator("mark")).to_be_hidden()
    source.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(source.locator("mark")).to_have_text(TEXTS[2])
    expect(source.locator("mark")).to_be_in_viewport()
    expect(source).to_contain_text("Reading it")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    expect(drawer.locator("mark")).to_have_text(TEXTS[2])
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    # The settings of the mixture have no part in an answer.
    expect(page.get_by_label("number input for λ, weight of the memory")).to_be_hidden()
    chat.visit.tab("Generate")
    expect(page.get_by_label("number input for λ, weight of the memory")).to_be_visible()


def test_what_no_document_says_is_said_with_the_nearest_passages(chat):
    reply = chat.ask(MISSING)
    expect(reply.locator(".kl-alone")).to_contain_text(
        "No document says that. The nearest sentence:"
    )
    mark = reply.locator("details").first.locator("mark")
    assert mark.text_content().strip() in reply.locator(".kl-alone").text_content()
    expect(reply.locator(".kl-from")).to_have_text("The nearest passages:")
    assert reply.locator("details").count() >= 2
    reply.locator("details").first.locator("summary").click()
    expect(reply.locator("details blockquote").first).to_contain_text("harbour")


def test_a_model_that_answers_alone_is_said_to_be_alone_above_its_words(chat):
    reply = chat.ask(GENERAL)
    expect(reply.locator(".kl-alone")).to_have_text(ALONE)
    expect(reply.locator(".kl-alone")).to_be_visible()
    assert reply.locator(".kl-said").inner_text().strip()
    expect(reply).to_contain_text("an answer has 24 tokens at most")
    expect(reply.locator("details")).to_have_count(0)
    expect(chat.page.locator("#chat").get_by_role("status")).to_contain_text(ALONE)


def test_turns_are_sent_along_and_survive_a_reload_until_a_new_chat(chat):
    page = chat.page
    sent = []
    page.on("request", lambda one: "queue/join" in one.url and sent.append(one.post_data_json))
    chat.ask(QUEEN)
    reply = chat.ask("And when was it?")
    assert TEXTS[2] in reply.inner_text()  # the question before is asked with it
    assert [len(one["event_data"]["history"]) for one in sent] == [0, 2]
    assert sent[1]["event_data"]["history"] == [
        {"role": "user", "content": QUEEN},
        {"role": "assistant", "content": TEXTS[2]},
    ]
    before = chat.log.inner_text()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    expect(page.locator("#chat .kl-log > li")).to_have_count(2)
    assert chat.log.inner_text() == before
    chat.turn(0).locator("summary").click()
    expect(chat.turn(0).locator("mark")).to_be_visible()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#chat .kl-log > li")).to_have_count(0)
    expect(chat.box).to_be_focused()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    expect(page.locator("#chat .kl-log > li")).to_have_count(0)


def test_enter_sends_and_shift_enter_breaks_the_line(chat):
    chat.box.fill("Who keeps")
    chat.box.press("Shift+Enter")
    chat.box.type("the weather?")
    expect(chat.box).to_have_value("Who keeps\nthe weather?")
    expect(chat.log.locator("> li")).to_have_count(0)
    chat.box.press("Enter")
    expect(chat.turn().locator(".kl-question")).to_have_text("Who keeps\nthe weather?")
    # Nothing is sent, and nothing replaced, by an empty question.
    chat.box.press("Enter")
    chat.page.get_by_role("button", name="Send").click()
    expect(chat.log.locator("> li")).to_have_count(1)
    expect(chat.log).to_have_attribute("aria-busy", "false")


def test_stop_ends_a_question_and_another_one_replaces_it(chat, held):
    page = chat.page
    chat.send(QUEEN)
    expect(chat.turn()).to_contain_text("Looking in the documents")
    expect(chat.log).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Stop", exact=True).filter(visible=True).click()
    expect(chat.turn()).to_contain_text("ended early: stopped")
    expect(chat.log).to_have_attribute("aria-busy", "false")
    chat.send(QUEEN)
    expect(chat.turn()).to_contain_text("Looking in the documents")
    held.set()
    reply = chat.ask(MISSING)
    expect(reply).to_contain_text("No document says that.")
    expect(chat.log.locator("> li")).to_have_count(3)
    # The replaced question was ended by this one, unless its answer was quicker.
    text = chat.turn(1).inner_text()
    assert "another question was asked" in text or TEXTS[2] in text


def test_a_question_that_is_stopped_while_it_waits_is_never_asked(
    chat, chat_page, visit, held, monkeypatch
):
    find, queries = Asking.find, []
    monkeypatch.setattr(
        Asking, "find", lambda self, query: queries.append(query) or find(self, query)
    )
    others = [Chat(visit(url=chat_page[0])) for _ in range(2)]
    for other in others:
        other.send(QUEEN)
    eventually(lambda: len(queries) == len(others))
    with chat.page.expect_response("**/queue/join**"):
        chat.send("Is this ever asked?")
    with chat.page.expect_response("**/queue/join**"):
        chat.page.locator("#chat-stop").click()
    expect(chat.turn()).to_contain_text("ended early: stopped")
    held.set()
    expect(chat.ask(MISSING)).to_contain_text("No document says that.")
    assert queries[len(others) :] == [MISSING]


def test_a_replaced_question_takes_no_turn_in_the_conversation(chat, held):
    sent = []
    chat.page.on("request", lambda one: "queue/join" in one.url and sent.append(one.post_data_json))
    chat.send(QUEEN)
    expect(chat.turn()).to_contain_text("Looking in the documents")
    reply = chat.ask(MISSING)
    expect(reply).to_contain_text("No document says that.")
    expect(chat.turn(0)).to_contain_text("another question was asked")
    assert [one["event_data"]["history"] for one in sent] == [[], []]
    chat.turn(0).get_by_role("button", name="Ask again").click()
    held.set()
    expect(chat.turn()).to_contain_text(TEXTS[2])


def test_a_request_that_the_server_refuses_is_said_in_its_turn(chat):
    refusal = {"detail": "too many requests from your address are waiting"}
    chat.page.route("**/queue/join**", lambda route: route.fulfill(status=503, json=refusal))
    reply = chat.ask(QUEEN)
    expect(reply.locator(".kl-error")).to_contain_text("The server did not respond.")
    chat.page.unroute_all()
    chat.visit.problems.clear()  # the browser reports the refusal on its console
    reply.get_by_role("button", name="Ask again").click()
    expect(chat.turn()).to_contain_text(TEXTS[2])


def test_one_address_has_only_so_many_questions_at_a_time(chat_page, held):
    session = chat_page[1].session
    library = session.first
    limits = {"quotas": Quotas(waiting=2), "limits": session.limits}
    with serving(library, **limits) as (url, _), httpx.Client(base_url=url) as client:
        (ask,) = [
            one["id"] for one in client.get("/config").json()["dependencies"]
            if [event for _, event in one["targets"]] == ["ask"] and len(one["inputs"]) == 7
        ]  # fmt: skip
        name = next(iter(library.stores))
        data = ["tiny", [name], 0.5, 4, 1.0, False, False]
        codes = []
        for number in range(3):
            event = {"turn": 1, "question": QUEEN, "history": []}
            body = {"data": data, "event_data": event, "fn_index": ask}
            body["session_hash"] = f"somebody{number}"
            codes.append(client.post("/gradio_api/queue/join", json=body, timeout=60).status_code)
        assert codes == [200, 200, 503]
        held.set()


@pytest.mark.parametrize("line", ["at least one datastore", "shorten it"])
def test_a_mistake_is_one_friendly_line_in_its_turn(chat, store, line):
    if line == "shorten it":
        chat.box.fill("word " * 400)
    else:
        for name in (store.name, "signs"):
            chat.page.get_by_label(name, exact=True).uncheck()
        chat.box.fill(QUEEN)
    chat.box.press("Enter")
    expect(chat.turn().locator(".kl-error")).to_contain_text(line)
    assert "Traceback" not in chat.page.content()


def test_several_datastores_are_asked_as_one_and_a_source_links_to_its_page(chat):
    chat.page.get_by_label("signs", exact=True).check()
    reply = chat.ask("When does the ferry leave Oldenport?")
    expect(reply.locator(".kl-quoted")).to_contain_text("The ferry leaves Oldenport at noon.")
    expect(reply.locator(".kl-store")).to_have_text("signs")
    reply.locator("summary").click()
    link = reply.get_by_role("link", name="Open the original in a new tab")
    expect(link).to_have_attribute("href", "https://example.org/ferry")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")


def test_a_datastore_that_is_not_chosen_is_named_and_searched_by_a_click(chat, store):
    expect(chat.page.get_by_label(store.name, exact=True)).to_be_checked()
    expect(chat.page.get_by_label("signs", exact=True)).to_be_checked()
    chat.page.get_by_label("signs", exact=True).uncheck()
    reply = chat.ask("When does the ferry leave?")
    reply.get_by_role("button", name="search “signs” too").click()
    expect(chat.log.locator("> li")).to_have_count(2)
    expect(chat.turn().locator(".kl-quoted")).to_contain_text("The ferry leaves Oldenport at noon.")
    expect(chat.page.get_by_label("signs", exact=True)).to_be_checked()


def test_a_source_in_a_pdf_of_ones_own_opens_the_pdf_at_its_page(chat, tmp_path):
    page = chat.page
    file = tmp_path / "kiln.pdf"
    file.write_bytes(pdf("The kiln is old.", "The kiln of Harrow reaches 1280 degrees."))
    chat.visit.tab("Your text")
    page.locator("#own-files input[type=file]").set_input_files(file)
    expect(page.locator("#own-files")).to_contain_text("kiln")
    chat.visit.build()
    chat.visit.tab("Chat")
    reply = chat.ask("How many degrees does the kiln of Harrow reach?")
    expect(reply.locator("summary")).to_contain_text("kiln.pdf, page 2")
    reply.locator("summary").click()
    link = reply.get_by_role("link", name="Open the original")
    address = link.get_attribute("href")
    assert address.startswith("blob:http://127.0.0.1")
    assert address.endswith("#page=2")
    kind = "fetch(url).then((one) => one.blob()).then((one) => [one.type, one.size])"
    found = page.evaluate(f"(url) => {kind}", address.partition("#")[0])
    assert found == ["application/pdf", file.stat().st_size]


def test_the_model_s_own_words_name_what_was_read(chat):
    chat.page.get_by_label("Answer in the model’s own words").check()
    reply = chat.ask(QUEEN)
    expect(reply.locator(".kl-quoted")).to_have_count(0)
    expect(reply.locator("p.kl-said")).to_be_visible()
    expect(reply.locator(".kl-from")).to_contain_text("Written by the model")
    reply.locator("summary").click()
    expect(reply.locator("details blockquote")).to_contain_text(TEXTS[2])


def test_hostile_documents_and_questions_are_text(chat, store):
    page = chat.page
    page.get_by_label(store.name, exact=True).uncheck()
    page.get_by_label("signs", exact=True).check()
    for number, payload in list(enumerate(PAYLOADS[::3]))[:6]:
        question = f"What does Sign {number} read? {payload}"
        chat.ask(question)
        page.evaluate(OPEN_ALL)
        assert page.evaluate("window.pwned") is None
    handlers = "[...document.querySelectorAll('#chat *')].filter((one) => " \
        "[...one.attributes].some((name) => name.name.startsWith('on'))).length"  # fmt: skip
    assert page.evaluate(handlers) == 0
    assert page.locator("#chat a[href^=javascript], #chat img, #chat iframe").count() == 0
    page.reload()
    page.wait_for_selector("html[data-ready]")
    expect(chat.log.locator("> li")).to_have_count(6)
    assert PAYLOADS[0] in chat.log.inner_text()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("window.pwned") is None


def test_a_text_of_ones_own_is_asked(chat):
    page = chat.page
    chat.visit.tab("Your text")
    page.locator("#own-text textarea").fill("The lighthouse of Orrin Bay was painted blue in 1931.")
    chat.visit.build()
    chat.visit.tab("Chat")
    reply = chat.ask("When was the lighthouse of Orrin Bay painted?")
    expect(reply.locator(".kl-quoted")).to_contain_text("painted blue in 1931.")
    expect(reply.locator("summary")).to_contain_text("Pasted text")
    reply.locator("summary").click()
    reply.get_by_role("button", name="Read the document").click()
    expect(page.get_by_role("dialog")).to_contain_text("The lighthouse of Orrin Bay")


def test_a_link_asks_a_question_and_another_continues_a_text(visit, chat_page):
    chat = Chat(visit(url=f"{chat_page[0]}/?ask=When+does+the+ferry+leave%3F&store=signs"))
    expect(chat.turn().locator(".kl-quoted")).to_contain_text("at noon")
    one = visit(url=f"{chat_page[0]}/?q=The+ferry&store=signs")
    expect(one.page.locator("#answers .kl-side-knn .kl-prompt")).to_have_text("The ferry")
    expect(one.page.get_by_role("tab", name="Generate")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_form_stays_in_sight_and_nothing_reaches_past_the_edge(visit, chat_page, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    one = visit(width, scheme, chat_page[0])
    one.page.set_viewport_size({"width": width, "height": 844})
    chat = Chat(one)
    chat.ask("W" * 300)
    for question in (QUEEN, MISSING, GENERAL):
        chat.ask(question)
        expect(chat.turn().locator(".kl-question")).to_be_in_viewport()
        expect(chat.box).to_be_in_viewport()
        expect(one.page.get_by_role("button", name="Send")).to_be_in_viewport()
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    one.page.evaluate(OPEN_ALL)
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    found = [
        (violation["id"], [node["html"][:150] for node in violation["nodes"][:3]])
        for violation in axe.run(one.page, options=OPTIONS).response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
    assert not found, found


def test_a_model_without_a_template_writes_first_and_is_asked_beside_it(visit):
    one = visit()
    assert one.page.get_by_role("tab").all_inner_texts()[:2] == ["Generate", "Chat"]
    one.tab("Chat")
    reply = Chat(one).ask("What is the cause of E529?")
    expect(reply.locator(".kl-quoted")).to_contain_text("E529")


def test_an_encoder_decoder_model_has_no_chat(visit, pair_url):
    assert "Chat" not in visit(url=pair_url).page.get_by_role("tab").all_inner_texts()
