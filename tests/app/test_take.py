"""An answer taken along: a link that fills and runs, text with footnotes, earlier answers."""

import re
import threading
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from app.conftest import PATIENCE, expect
from app.payloads import PAYLOADS
from knn_logits_app.decoding import TokenStream

VALUES = ("q", "explain", "store", "lmbda", "k", "temperature", "word", "embed")
FIRST = "What helps against E529 is this:"
COPIED = """
window.copied = [];
const writeText = async (text) => copied.push(text);
Object.defineProperty(navigator, "clipboard", { value: { writeText } });
"""


def test_a_link_fills_runs_and_opens_the_word(visit, url):
    asked = {"q": "Travellers thank Bishop Korrin for", "store": "chronicle", "word": 2}
    one = visit(url=f"{url}/?{urlencode(asked)}")
    page = one.page
    expect(page.locator("#answers .kl-side-knn .kl-text")).to_contain_text("the wide bridge")
    expect(page.locator("#prompt textarea")).to_have_value(asked["q"])
    expect(page.get_by_label("chronicle")).to_be_checked()
    expect(page.get_by_label("manual")).not_to_be_checked()
    word = page.locator("#answers .kl-w[data-word='2']")
    expect(word).to_have_attribute("aria-expanded", "true")


def test_a_word_stays_open_while_the_answer_beside_it_is_written(visit, served, monkeypatch):
    written, put = threading.Event(), TokenStream.put

    def late(self, value):
        if threading.current_thread().name == "write-lm":
            written.wait(PATIENCE)
        put(self, value)

    one = visit()
    page = one.page
    monkeypatch.setattr(TokenStream, "put", late)
    page.locator("#prompt textarea").fill(FIRST)
    one.mark("#answers")
    page.locator("#write").click()
    words = page.locator("#answers .kl-side-knn .kl-w[role=button]")
    words.nth(1).click()
    expect(words.nth(1)).to_have_attribute("aria-expanded", "true")
    written.set()
    expect(page.locator("#answers .kl-side-lm .kl-foot span").first).to_be_visible()
    page.wait_for_selector("#answers .kl-out[data-done=true]")
    expect(words.nth(1)).to_have_attribute("aria-expanded", "true")
    # The answer that the page began with is the only earlier one.
    expect(page.locator("#answers .kl-earlier summary")).to_have_text("Earlier answers (1)")


def test_the_link_of_an_answer_leads_to_it_and_its_text_has_footnotes(visit):
    one = visit(script=COPIED)
    page = one.page
    page.locator("#answers").get_by_role("button", name="Copy with sources").click()
    page.wait_for_function("copied.length")
    text, notes = page.evaluate("copied.pop()").split("\n\n")
    assert text.startswith(f"{FIRST} adjust the front hose")
    assert "[1]" in text
    assert notes.startswith("[1] Error E529 (Kenmouth lathe) (manual)")
    page.locator("#answers .kl-w[role=button]", has_text="hose").click()
    page.locator("#answers").get_by_role("button", name="Copy a link").click()
    page.wait_for_function("copied.length")
    parts = urlsplit(page.evaluate("copied[0]"))
    asked = parse_qs(parts.query)
    assert asked["q"] == [FIRST]
    assert asked["store"] == ["manual"]
    assert asked["lmbda"] == ["0.8"]
    one.open(page.evaluate("copied[0]"))
    opened = page.locator("#answers .kl-w[aria-expanded=true]")
    expect(opened).to_have_text("hose")
    # A text that was checked is shared in the same way.
    one.tab("Explain")
    page.locator("#explain-text textarea").fill("What helps against E529 is this: polish it.")
    page.locator("#explain").click()
    page.locator("#explained .kl-w[role=button]", has_text="polish").click()
    page.locator("#explained").get_by_role("button", name="Copy a link").click()
    page.wait_for_function("copied.length")
    one.open(page.evaluate("copied[0]"))
    expect(page.locator("#explained .kl-w[aria-expanded=true]")).to_have_text("polish")


def test_earlier_answers_come_back(visit):
    one = visit()
    page = one.page
    assert page.locator("#answers .kl-earlier").count() == 0
    one.write(
        "At the end of the second shift the foreman of the third hall of Kenmouth asked: "
        "the fault that raises E976 is called"
    )
    expect(page.locator("#answers .kl-earlier summary")).to_have_text("Earlier answers (1)")
    page.locator("#answers .kl-earlier summary").click()
    page.locator("#answers .kl-earlier button").click()
    expect(page.locator("#answers .kl-side-knn .kl-text")).to_contain_text("adjust the front hose")
    # The name of an answer begins with a whole word.
    name = page.locator("#answers .kl-earlier button .kl-prompt").text_content()
    assert re.match("… (of|the|third|hall|foreman) ", name), name


def test_inside_another_page_stands_the_answer_alone(visit, url):
    page = visit(url=f"{url}/?embed=1").page
    expect(page.locator("#answers .kl-side-knn .kl-text")).to_contain_text("adjust the front hose")
    expect(page.locator("#answers .kl-panel")).to_be_visible()
    for place in ("#prompt", "#side", ".kl-title", ".kl-top", "#write"):
        expect(page.locator(place)).to_be_hidden()


@pytest.mark.parametrize(
    "first", [0, 20, *(pytest.param(one, marks=pytest.mark.soak) for one in (10, 30, 40))]
)
def test_a_link_runs_nothing(visit, url, first):
    """Ten payloads in every value of the address at a time. A link writes, or else explains."""
    payload = " ".join(PAYLOADS[first : first + 10])[:900]
    explains = first % 20 == 0 and first > 0
    asked = dict.fromkeys(VALUES[1:] if explains else VALUES, payload)
    one = visit(url=f"{url}/?{urlencode(asked)}")
    page = one.page
    place = "#explained" if explains else "#answers"
    page.wait_for_selector(f"{place} :is(.kl-error, .kl-foot span)", state="attached")
    page.wait_for_timeout(300)
    assert page.evaluate("window.pwned") is None
