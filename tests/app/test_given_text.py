"""Journeys of Explain and Evaluate: a given text is compared with the documents, or measured."""

import re
import threading
import time
from types import SimpleNamespace

import pytest

from app.conftest import PATIENCE, eventually, expect
from app.writing import explain, words
from knn_logits_app import given_text, session

BISHOP = "Travellers thank Bishop Korrin for"
ENDLESS = "The lathe is old, and the old lathe is slow and heavy."


def test_a_text_is_compared_with_the_documents(one):
    page = one.page
    one.tab("Explain")
    page.locator("#explain").click()
    one.fresh("#explained", ".kl-foot span")
    assert words(page, "#explained").count() >= 9
    headline = page.locator("#explained .kl-headline")
    # It never says that nothing is wrong, only what is the same.
    said = re.compile(r"^The same in a passage: (\d+ of|all) \d+ words$")
    expect(headline.locator("b")).to_have_text(said)
    explain(one, "The remedy for E941 is to bend the right bearing.")
    panel = page.locator("#explained .kl-panel")
    expect(panel).to_contain_text("A passage says straighten in a sentence like this one")
    assert panel.locator("h3").inner_text() == "bend"
    expect(panel.locator(".kl-against")).to_contain_text("Error E941")
    style = "(one) => getComputedStyle(one).textDecorationStyle"
    assert page.locator("#explained .kl-not", has_text="bend").evaluate(style) == "wavy"
    expect(headline).to_have_text("1 difference in all 10 words that were compared with a passage.")
    listed = page.get_by_role("list", name="Differences")
    expect(listed).to_contain_text("Your text: bend · Source: straighten")
    expect(listed.get_by_role("button", name="Error E941")).to_be_visible()
    page.get_by_role("button", name="Close the sources").click()
    listed.get_by_role("button", name="bend").click()
    expect(panel.locator("h3")).to_have_text("bend")
    explain(one, "The remedy for E941 is to straighten the left lamp. Nobody knew a better one.")
    expect(headline).to_contain_text("Nothing is known of the gray words")
    color = "(one) => getComputedStyle(one).color"
    known, other, legend = (
        page.locator(f"#explained {one}", has_text=text).evaluate(color)
        for one, text in ((".kl-w", "remedy"), (".kl-w", "Nobody"), (".kl-legend", "not compared"))
    )
    assert known != other == legend
    explain(one, "My cat sleeps.")
    expect(headline).to_contain_text("Nothing was compared")


def test_a_text_is_measured_and_the_page_says_what_is_loaded(one, library):
    page = one.page
    one.tab("Evaluate")
    # A text of the datastore would measure nothing, so none is filled in.
    expect(page.locator("#evaluate-text textarea")).to_have_value("")
    page.locator("#evaluate-text textarea").fill(
        "What helps against E529 is this: adjust the front hose. The right position of K-5750 is "
        "opposite the front filter."
    )
    page.locator("#evaluate").click()
    line, manual = page.locator("#evaluated .kl-notice"), page.get_by_label("manual")
    expect(line).to_contain_text("lowers the perplexity")
    # It goes with its settings, and the same line comes again.
    for _ in range(2):
        manual.uncheck()
        expect(line).to_have_count(0)
        page.locator("#evaluate").click()
        expect(line).to_have_text("Choose at least one of the documents.")
        manual.check()
        expect(line).to_have_count(0)
    page.locator("#side summary").click()
    for store in library.stores.values():
        line = re.compile(rf"{len(store):,} entries, .*Apache-2.0")
        expect(page.locator("#side details p", has_text=line)).to_be_visible()


@pytest.fixture
def reading(monkeypatch):
    """The endless texts that are read: each until its deadline ends that, and it may leave."""
    reading = SimpleNamespace(texts=[], leave=threading.Event())
    reading.leave.set()

    def held(read):
        def run(model, tokenizer, memory, text, *, progress, **how):
            if ENDLESS in text:
                reading.texts.append(text)
                try:
                    while True:
                        progress("held", 0, None)
                        time.sleep(0.01)
                finally:
                    reading.leave.wait(PATIENCE)
                    reading.texts.remove(text)
            return read(model, tokenizer, memory, text, progress=progress, **how)

        return run

    monkeypatch.setattr(given_text, "evaluate", held(given_text.evaluate))
    monkeypatch.setattr(session, "explain", held(session.explain))
    return reading


@pytest.mark.parametrize(("name", "place"), [("Explain", "#explained"), ("Evaluate", "#evaluated")])
def test_a_text_frees_its_place_when_it_is_stopped_replaced_or_left(one, reading, name, place):
    page, kind = one.page, name.lower()
    stop, box = page.locator(f"#{kind}-stop"), page.locator(f"#{kind}-text textarea")
    line = page.locator(place).get_by_text(BISHOP)

    def give(text):
        box.fill(text)
        page.locator(f"#{kind}").click()

    def begin():
        give(ENDLESS)
        expect(stop).to_be_enabled()
        eventually(lambda: reading.texts)

    one.tab(name)
    expect(stop).to_be_disabled()
    begin()
    expect(page.locator(place)).to_contain_text("processing")
    stop.click()
    expect(stop).to_be_disabled()
    eventually(lambda: not reading.texts)
    begin()
    # What was replaced may end later, and changes nothing then.
    reading.leave.clear()
    give(f"{BISHOP} the bread and the old bridge of the town")
    expect(line).to_be_visible()
    reading.leave.set()
    expect(stop).to_be_disabled()
    expect(line).to_be_visible()
    assert not reading.texts
    begin()
    one.open()
    eventually(lambda: not reading.texts)
