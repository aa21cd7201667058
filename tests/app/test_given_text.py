"""Journeys of Explain and Evaluate: a given text is compared with the documents, or measured."""

import re
import threading

from app.conftest import PATIENCE, expect
from app.writing import explain, words
from knn_logits_app import given_text

BISHOP = "Travellers thank Bishop Korrin for"


def test_a_text_is_compared_with_the_documents(one):
    page = one.page
    one.tab("Explain")
    page.locator("#explain").click()
    one.fresh("#explained", ".kl-foot span")
    assert words(page, "#explained").count() >= 9
    headline = page.locator("#explained .kl-headline")
    # It never says that nothing is wrong, only what was compared.
    expect(headline).to_contain_text(re.compile(r"No difference in the \d+ of \d+ words that"))
    explain(one, "The remedy for E941 is to bend the left lamp.")
    panel = page.locator("#explained .kl-panel")
    expect(panel).to_contain_text("The memory says straighten here")
    assert panel.locator("h3").inner_text() == "bend"
    expect(panel.locator(".kl-against")).to_contain_text("Error E941")
    style = "(one) => getComputedStyle(one).textDecorationStyle"
    assert page.locator("#explained .kl-not", has_text="bend").evaluate(style) == "wavy"
    expect(headline).to_contain_text(re.compile(r"\d differences? in the \d of 9 words that"))
    listed = page.get_by_role("list", name="Differences")
    expect(listed).to_contain_text("Your text: bend · Source: straighten (Error E941")
    page.get_by_role("button", name="Close the sources").click()
    listed.get_by_role("button", name="bend").click()
    expect(panel.locator("h3")).to_have_text("bend")
    explain(one, "The remedy for E941 is to straighten the left lamp. Nobody knew a better one.")
    expect(headline).to_contain_text("Nothing is known of the rest.")
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


def test_the_newer_of_two_texts_is_measured_and_named(one, monkeypatch):
    measure, begun, go = given_text.evaluate, threading.Event(), threading.Event()

    def held(*given, **named):
        begun.set()
        go.wait(PATIENCE)
        return measure(*given, **named)

    monkeypatch.setattr(given_text, "evaluate", held)
    one.tab("Evaluate")
    for text in ("The lathe is old.", BISHOP):
        one.page.locator("#evaluate-text textarea").fill(text)
        one.page.locator("#evaluate").click()
        assert begun.wait(PATIENCE)
    go.set()
    expect(one.page.locator("#evaluated p")).to_contain_text(f"the perplexity of “{BISHOP}”")
