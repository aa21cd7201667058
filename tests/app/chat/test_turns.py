"""The chat in a browser: questions in turns, and what may happen to them."""

import re
from dataclasses import replace

import pytest
from conftest import TEXTS

from app.chatting import GENERAL, MISSING, OPEN_ALL, QUEEN, Chat
from app.conftest import expect

OPTIONS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"], "resultTypes": ["violations"]}


def test_turns_are_sent_along_by_keys_and_survive_a_reload_until_a_new_chat(chat):
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
    chat.visit.open()
    expect(page.locator("#chat .kl-log > li")).to_have_count(2)
    assert chat.log.inner_text() == before
    chat.turn(0).locator("summary").click()
    expect(chat.turn(0).locator("mark")).to_be_visible()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#chat .kl-log > li")).to_have_count(0)
    expect(chat.box).to_be_focused()
    chat.visit.open()
    expect(page.locator("#chat .kl-log > li")).to_have_count(0)
    # Enter sends, and Shift+Enter breaks the line.
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
    # Of two questions only what is quoted has marks.
    said = f"“{TEXTS[2]}” {MISSING} No passage clearly answers this."
    expect(chat.ask(f"{QUEEN} {MISSING}").locator(".kl-quoted")).to_have_text(said)


def test_a_question_is_stopped_or_replaced_and_then_takes_no_turn(chat, held):
    sent = []
    chat.page.on("request", lambda one: "queue/join" in one.url and sent.append(one.post_data_json))
    stop = chat.page.get_by_role("button", name="Stop", exact=True).filter(visible=True)
    expect(stop).to_have_count(0)  # there is nothing to stop yet
    chat.send(QUEEN)
    expect(chat.turn()).to_contain_text("Looking in the documents")
    expect(chat.log).to_have_attribute("aria-busy", "true")
    stop.click()
    expect(chat.turn()).to_contain_text("ended early: stopped")
    expect(stop).to_be_disabled()
    expect(chat.log).to_have_attribute("aria-busy", "false")
    # Its search ends, and the next one waits again: two would take all that runs at a time.
    held.set()
    held.clear()
    chat.send(QUEEN)
    expect(chat.turn()).to_contain_text("Looking in the documents")
    expect(chat.ask(MISSING)).to_contain_text("No passage clearly answers this.")
    expect(chat.log.locator("> li")).to_have_count(3)
    expect(chat.turn(1)).to_contain_text("another question was asked")
    asked = [one["event_data"] for one in sent if "event_data" in one]
    assert [one["history"] for one in asked] == [[], [], []]
    chat.turn(1).get_by_role("button", name="Ask again").click()
    held.set()
    expect(chat.turn()).to_contain_text(TEXTS[2])


def test_what_goes_wrong_is_one_line_at_the_box(chat, chat_page, held, monkeypatch, store):
    session = chat_page[1].session
    monkeypatch.setattr(session, "limits", replace(session.limits, seconds=0.5))
    chat.send(QUEEN)
    expect(chat.turn()).to_contain_text("The time was up before an answer was found")
    monkeypatch.undo()
    held.set()
    chat.turn().get_by_role("button", name="Ask again").click()
    expect(chat.turn().locator(".kl-quoted")).to_have_text(f"“{TEXTS[2]}”")
    refusal = {"detail": "too many requests from your address are waiting"}
    chat.page.route("**/queue/join**", lambda route: route.fulfill(status=503, json=refusal))
    # A question that was refused comes back into its box, and takes no turn.
    turns, wrong = chat.log.locator("> li"), chat.page.locator("#chat-line-wrong")
    taken = turns.count()
    chat.send(QUEEN)
    expect(wrong).to_have_text("The server did not respond.")
    expect(turns).to_have_count(taken)
    chat.page.unroute_all()
    chat.visit.problems.clear()  # the browser reports the refusal on its console
    expect(chat.box).to_have_value(QUEEN)
    chat.box.press("Enter")
    expect(chat.turn()).to_contain_text(TEXTS[2])
    many_tokens = "0 1 2 3 4 " * 100
    chat.box.fill(many_tokens)
    chat.box.press("Enter")
    expect(wrong).to_contain_text("The text has ")
    expect(chat.box).to_have_value(many_tokens)
    # One that is far too long is not even taken by the box.
    chat.box.fill("")
    chat.page.keyboard.insert_text("word " * 400)
    expect(wrong).to_have_text(re.compile("This was not added: .* the limit is 1,024"))
    expect(chat.box).to_have_value("")
    expect(turns).to_have_count(taken + 1)
    # Another tab does not lose the place in the conversation.
    chat.page.evaluate("scrollTo(0, 0)")
    chat.visit.tab("Explain")
    chat.visit.tab("Chat")
    expect(chat.turn()).to_be_in_viewport()
    for name in (store.name, "signs"):
        chat.page.get_by_label(name, exact=True).uncheck()
    # The question waits in the box until there is something to ask.
    chat.box.fill(QUEEN)
    chat.box.press("Enter")
    expect(wrong).to_have_text("Choose at least one of the documents.")
    chat.page.get_by_label("signs", exact=True).check()
    expect(wrong).to_have_count(0)
    expect(chat.box).to_have_value(QUEEN)
    assert "Traceback" not in chat.page.content()


def test_no_sheet_covers_the_question_of_a_new_chat(visit, chat_page):
    chat = Chat(visit(390, url=chat_page[0]))
    sheet = chat.page.locator("#example .kl-panel")
    chat.page.locator("#example .kl-w[role=button]").first.click()
    expect(sheet).to_be_visible()
    chat.ask(QUEEN)
    chat.page.get_by_role("button", name="New chat").click()
    expect(chat.page.locator("#example .kl-answer").first).to_be_visible()
    expect(sheet).to_have_count(0)


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
    ]
    assert not found, found
