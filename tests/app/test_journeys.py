"""Journeys on a wide screen: each visitor does in one go what belongs together."""

import re
import shutil
import threading
import time
from collections import Counter
from urllib.parse import parse_qs, urlsplit

import pytest
from gate_cases import random_adaptive
from tuned import write_settings

from app.conftest import PATIENCE, eventually, expect, serving, stop_heard
from app.test_raw_requests import call, form
from app.writing import explain, open_word, opened, slide, text_of, words
from knn_logits import Datastore
from knn_logits_app.decoding import TokenStream
from knn_logits_app.library import Library

FIRST_PROMPT = "What helps against E529 is this:"
BISHOP = "Travellers thank Bishop Korrin for"


def test_where_a_word_comes_from_is_seen_at_once_and_by_keys(one):
    page = one.page
    expect(page.locator("h1")).to_have_text("See which sentence every word came from")
    expect(text_of(page)).to_contain_text("adjust the front hose")
    expect(text_of(page, "lm")).not_to_contain_text("adjust the front hose")
    expect(page.locator("#answers .kl-headline")).to_have_text(
        "The texts differ from “adjust” on: the memory brought 3 of 4 words (3 dotted: the source "
        "may be about something else), and agreed to 1."
    )
    changed = page.locator("#answers .kl-side-knn .kl-changed").all_inner_texts()
    assert changed == ["adjust", "front", "hose"]
    assert opened(page) in changed
    agreed = page.locator("#answers .kl-side-knn .kl-agreed").first
    assert agreed.inner_text() == "the"
    # No colour on a word that the model was sure of.
    style = "([one, name]) => getComputedStyle(one)[name]"
    assert page.evaluate(style, [agreed.element_handle(), "backgroundColor"]) == "rgba(0, 0, 0, 0)"
    # The words stand as far apart as without colours.
    left = [
        page.evaluate(style, [agreed.element_handle(), f"{one}Left"])
        for one in ("padding", "margin")
    ]
    assert sum(float(one.removesuffix("px")) for one in left) == 0
    assert "adjust the front hose" in page.locator("#answers .kl-span").first.inner_text()
    # Another word opens beside the text, which stays where it is: it once moved by 774 pixels.
    page.set_viewport_size({"width": 1280, "height": 640})
    page.locator("#answers .kl-headline").evaluate("(one) => one.scrollIntoView()")
    before = page.evaluate("scrollY")
    closed = next(one for one in changed if one != opened(page))
    word = page.locator("#answers .kl-changed[role=button]", has_text=closed)
    word.click()
    panel = page.locator("#answers .kl-panel")
    expect(panel.locator("h3")).to_have_text(closed)
    expect(panel.locator("h3")).to_be_in_viewport()
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == before
    assert panel.bounding_box()["x"] > word.bounding_box()["x"]
    for part in ("Error E529", "of the chance of the word", "model alone", "memory alone"):
        assert part.lower() in panel.inner_text().lower()
    assert "by the memory" in word.get_attribute("aria-description")
    word.click()
    expect(panel).to_have_count(0)
    # In its place stand the documents.
    document = page.locator("#answers .kl-docs .kl-part").first
    expect(document).to_contain_text("Error E529 (Kenmouth lathe)")
    words(page).first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert opened(page) == page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    page.keyboard.press("Space")
    # The document is read whole, with its passage marked, as often as one wants.
    for leave in ("Escape", "Back", "Close the document"):
        page.locator("#answers .kl-open").first.click()
        drawer = page.get_by_role("dialog")
        expect(drawer.locator("mark")).to_have_text("adjust the front hose")
        expect(drawer.locator("mark")).to_be_in_viewport()
        text = drawer.locator(".kl-whole").inner_text()
        assert "Service note for the Kenmouth lathe: E529." in text
        assert text.rstrip().endswith("lever.")
        if leave == "Escape":
            page.keyboard.press(leave)
        elif leave == "Back":
            page.go_back()
        else:
            drawer.get_by_role("button", name=leave).click()
        expect(drawer).to_have_count(0)
        assert page.evaluate("document.activeElement.className") == "kl-open"
    page.go_back()
    expect(panel).to_have_count(0)
    expect(text_of(page)).to_be_visible()


def test_the_memory_is_of_several_datastores(one):
    page = one.page
    page.get_by_label("manual").uncheck()
    page.get_by_label("chronicle").check()
    one.mark("#answers")
    page.get_by_role("button", name="Travellers thank").click()
    one.fresh("#answers", ".kl-foot span")
    expect(text_of(page)).to_contain_text("the wide bridge")
    page.get_by_label("manual").check()
    one.write()
    with_knn = text_of(page).inner_text()
    assert "the wide bridge" in with_knn
    assert "chronicle" in page.locator("#answers .kl-store").all_text_contents()
    page.get_by_label("Compare with the model alone").uncheck()
    one.write()
    assert text_of(page).inner_text() == with_knn
    expect(text_of(page, "lm")).to_have_count(0)


def test_settings_do_what_they_say_and_go_back(one):
    page = one.page
    expect(page.locator("#strength")).to_contain_text("Memory strength (λ)")
    own, chronicle = page.get_by_label("automatic"), page.get_by_label("chronicle")
    expect(own).to_be_checked()
    expect(page.locator("#lmbda")).to_be_hidden()
    page.get_by_label("fixed").check()
    expect(page.locator("#lmbda")).to_contain_text("Strength of all words (λ)")
    expect(page.locator("#k")).to_contain_text("Passages consulted (k)")
    expect(page.locator("#temperature")).to_contain_text("Sharpness (temperature τ)")
    formula = page.locator("#side details").get_by_text("p = λ p_kNN + (1 − λ) p_LM")
    expect(formula).to_be_hidden()
    page.locator("#side summary").click()
    expect(formula).to_be_visible()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_word(page, "adjust")
    expect(page.locator("#answers .kl-with")).to_contain_text("Memory strength: 80%.")
    turns = page.locator("#answers .kl-turns").inner_text()
    below = float(re.search(r"Below a memory strength of ([\d.]+)% it says “No”", turns)[1]) / 100
    # What is moved does not show in the words, until they are written again.
    note = page.locator("#answers .kl-stale")
    expect(note).to_have_count(1)
    own.check()
    expect(note).to_have_count(0)
    for change, back in (
        (lambda: slide(page, 0.01), own.check),
        (chronicle.check, chronicle.uncheck),
        (lambda: slide(page, 1, "k"), own.check),
    ):
        change()
        expect(note).to_contain_text("do not show the current settings")
        back()
        expect(note).to_have_count(0)
    assert asked == []
    slide(page, 1024, "k")
    slide(page, below * 0.9)
    note.get_by_role("button", name="Write again").click()
    expect(text_of(page)).to_contain_text("No")
    one.fresh("#answers", ".kl-foot span")
    expect(note).to_have_count(0)
    slide(page, 0)
    one.write(FIRST_PROMPT)
    assert text_of(page).inner_text() == text_of(page, "lm").inner_text()
    # One passage has the whole vote.
    slide(page, 0.95)
    slide(page, 1, "k")
    one.write(FIRST_PROMPT)
    words(page).nth(1).click()
    expect(page.locator("#answers .kl-with")).to_contain_text("Memory strength: 95%.")
    expect(page.locator("#answers .kl-sources > li")).to_have_count(1)
    expect(page.locator("#answers .kl-bars td:last-child").first).to_have_text("100%")


def test_a_gate_decides_for_each_word_until_a_number_is_fixed(library, visit, tmp_path):
    shutil.copytree(library.store.folder, tmp_path / "manual")
    gate = random_adaptive("cosine")
    write_settings(Datastore(tmp_path / "manual"), 1024, 0.1, 0.03, gate)
    stores = [Datastore(tmp_path / "manual")]
    gated = Library.of("small", library.model, library.tokenizer, stores, [FIRST_PROMPT])
    with serving(gated) as (url, _):
        one = visit(url=url)
        page = one.page
        expect(page.get_by_label("automatic")).to_be_checked()
        expect(page.locator("#lmbda")).to_be_hidden()
        panel = page.locator("#answers .kl-with")
        open_word(page, "")
        expect(panel).to_contain_text(re.compile(r"Memory strength: [\d.]+%, chosen for"))
        # Also the number that the datastore has beside its gate.
        for percent in (10, 95):
            slide(page, percent / 100)
            one.write()
            open_word(page, "")
            expect(panel).to_contain_text(f"Memory strength: {percent}%.")


@pytest.fixture
def until_stopped(served, monkeypatch):
    """Writing waits at its first word until a visitor stops it: no text ends before the click."""
    stop, started, stopped = served[1].visitors.stop, threading.Event(), threading.Event()
    put, steps = TokenStream.put, Counter()

    def slow(self, value):
        put(self, value)
        steps[id(self)] += 1
        # The first call is the prompt.
        if steps[id(self)] > 1:
            started.set()
            stopped.wait(PATIENCE)

    def stop_first(*visitor):
        stop(*visitor)
        if started.is_set():
            stopped.set()

    monkeypatch.setattr(TokenStream, "put", slow)
    monkeypatch.setattr(served[1].visitors, "stop", stop_first)
    yield lambda: (started.clear(), stopped.clear(), steps.clear())
    stopped.set()


def test_a_long_text_is_stopped_and_another_one_replaced(until_stopped, one):
    page = one.page
    page.get_by_label("Set length and sampling").check()
    expect(page.get_by_label("Randomness").first).to_be_visible()
    page.get_by_label("End with the sentence").uncheck()
    page.get_by_label("number input for Maximum new tokens").fill("128")
    page.get_by_label("number input for Maximum new tokens").press("Tab")
    one.mark("#answers")
    page.locator("#prompt textarea").fill("The")
    page.locator("#write").click()
    page.wait_for_selector("#answers .kl-caret")
    page.locator("#write-stop").click()
    one.fresh("#answers", ".kl-foot span")
    expect(page.locator("#answers")).to_contain_text("ended early: stopped")
    assert words(page).count() > 0
    until_stopped()
    prompt = page.locator("#prompt textarea")
    prompt.fill(FIRST_PROMPT)
    one.mark("#answers")
    page.locator("#write").click()
    page.wait_for_selector("#answers .kl-caret")
    expect(page.locator("#write-stop")).to_be_enabled()
    page.get_by_label("chronicle").check()
    prompt.fill(BISHOP)
    prompt.press("Enter")
    expect(text_of(page)).to_contain_text("the wide bridge")
    expect(text_of(page).locator(".kl-prompt")).to_have_text(BISHOP)
    page.wait_for_selector("#answers .kl-out[data-done=true]")
    expect(page.locator("#write-stop")).to_be_disabled()


def test_what_was_stopped_while_it_waited_is_never_run(served, one, client, monkeypatch):
    write, go, prompts = served[1].session.write, threading.Event(), []

    def held(writing, *rest):
        prompts.append(writing.prompt)
        if writing.prompt.startswith("Hold"):
            go.wait(PATIENCE)
        yield from write(writing, *rest)

    monkeypatch.setattr(served[1].session, "write", held)
    busy = [call(client, form(f"Hold {number}")) for number in range(2)]
    eventually(lambda: len(prompts) == len(busy))
    one.page.locator("#prompt textarea").fill("Never written")
    with one.page.expect_response("**/queue/join**"):
        one.page.locator("#write").click()
    expect(one.page.locator("#write-stop")).to_be_enabled()
    # Of six visitors two are answered, and who waits sees the place in the queue.
    place = one.page.locator("#answers > [data-testid=status-tracker]")
    expect(place).to_have_text(re.compile("queue: 1/1"))
    expect(place).to_have_css("opacity", "1")
    later = [call(client, form("Later"))[1] for _ in range(3)]
    expect(place).to_have_text(re.compile("queue: 1/4"))
    for visitor in later:
        served[1].visitors.stop(visitor, "write", time.monotonic())
    with stop_heard(served[1], monkeypatch):
        one.page.locator("#write-stop").click()
    expect(one.page.locator("#write-stop")).to_be_disabled()
    go.set()
    # A line says so all the same.
    expect(one.page.locator("#answers")).to_contain_text("ended early: stopped")
    one.write(BISHOP)
    assert prompts[len(busy) :] == [BISHOP]


def test_an_answer_is_written_without_a_document_and_comes_back(one):
    page = one.page
    headline = page.locator("#answers .kl-headline")
    open_word(page, "adjust")
    page.locator("#answers").get_by_role("button", name="Write without it").first.click()
    expect(headline).to_contain_text("as if “Error E529 (Kenmouth lathe)” had never been read")
    expect(page.locator("#answers .kl-side-knn h2")).to_contain_text("Without “Error E529")
    expect(page.locator("#answers .kl-docs")).not_to_contain_text("Error E529")
    expect(page.locator("#answers .kl-side-old")).to_contain_text("adjust the front hose")
    page.get_by_role("button", name="Back to it").click()
    expect(text_of(page)).to_contain_text("adjust the front hose")
    expect(page.locator("#answers .kl-side-old")).to_have_count(0)
    expect(headline).to_contain_text("the memory brought 3 of 4 words")


def test_an_answer_survives_a_reload(one):
    page = one.page
    page.get_by_label("chronicle").check()
    slide(page, 0.6)
    page.get_by_label("Set length and sampling").check()
    page.get_by_label("Seed").fill("5")
    page.get_by_label("number input for Maximum new tokens").fill("20")
    page.get_by_label("End with the sentence").uncheck()
    one.write("The fault that raises E976 is called")
    written = text_of(page).inner_text()
    one.tab("Evaluate")
    page.locator("#evaluate-text textarea").fill("The lathe is old.")
    one.open()
    expect(page.get_by_role("tab", name="Evaluate")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#evaluate-text textarea")).to_have_value("The lathe is old.")
    one.tab("Generate")
    expect(text_of(page)).to_have_text(written)
    expect(page.locator("#prompt textarea")).to_have_value("The fault that raises E976 is called")
    expect(page.locator("#lmbda input[type=number]")).to_have_value("0.6")
    expect(page.get_by_label("chronicle")).to_be_checked()
    expect(page.locator("#answers .kl-stale")).to_have_count(0)
    with page.expect_request("**/queue/join**") as asked:
        one.write(FIRST_PROMPT)
    assert asked.value.post_data_json["data"][-4:] == [20, False, 0, 5]
    expect(text_of(page)).to_contain_text("adjust the front hose")
    # A server that was started anew may have other datastores. What is still there stays chosen.
    page.evaluate(
        "addEventListener('pagehide', () => sessionStorage.setItem('knn-logits page',"
        " sessionStorage.getItem('knn-logits page').replace('chronicle', 'gone')))"
    )
    one.open()
    expect(page.get_by_label("chronicle")).not_to_be_checked()
    expect(page.get_by_label("manual")).to_be_checked()
    expect(page.locator("#lmbda input[type=number]")).to_have_value("0.6")


def test_a_link_opens_an_answer_at_its_word(one):
    page = one.page
    open_word(page, "hose")
    link = page.locator("#answers .kl-again").get_attribute("href")
    assert parse_qs(urlsplit(link).query).keys() == {"q", "store", "word"}
    slide(page, 0.7)
    one.write()
    open_word(page, "hose")
    link = page.locator("#answers .kl-again").get_attribute("href")
    asked = parse_qs(urlsplit(link).query)
    assert (asked["q"], asked["store"], asked["lmbda"]) == ([FIRST_PROMPT], ["manual"], ["0.7"])
    one.open(link)
    expect(page.locator("#lmbda input[type=number]")).to_have_value("0.7")
    expect(page.get_by_label("fixed")).to_be_checked()
    expect(page.locator("#answers .kl-w[aria-expanded=true]")).to_have_text("hose")
    # A text that was checked is shared in the same way.
    explain(one, "What helps against E529 is this: polish it.")
    if opened(page, "#explained") != "polish":
        page.locator("#explained .kl-w[role=button]", has_text="polish").click()
    one.open(page.locator("#explained .kl-again").get_attribute("href"))
    expect(page.locator("#explained .kl-w[aria-expanded=true]")).to_have_text("polish")
