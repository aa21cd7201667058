"""Journeys on a wide screen: each visitor does in one go what belongs together."""

import re
import threading
from collections import Counter
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from app.conftest import PATIENCE, eventually, expect
from app.payloads import PAYLOADS
from app.test_raw_requests import call, generating
from knn_logits import Trace
from knn_logits_app.decoding import TokenStream

FIRST = "What helps against E529 is this:"
BISHOP = "Travellers thank Bishop Korrin for"
VALUES = ("q", "explain", "store", "lmbda", "k", "temperature", "word", "embed")
COPIED = """
window.copied = [];
const writeText = async (text) => copied.push(text);
Object.defineProperty(navigator, "clipboard", { value: { writeText } });
"""


@pytest.fixture
def one(visit):
    return visit()


def text_of(page, side="knn"):
    return page.locator(f"#answers .kl-side-{side} .kl-text")


def words(page, place="#answers"):
    return page.locator(f"{place} .kl-w[role=button]")


def opened(page, place="#answers"):
    return page.locator(f"{place} .kl-panel h3").inner_text()


def open_word(page, text):
    if page.locator("#answers .kl-panel h3", has_text=text).count() == 0:
        page.locator("#answers .kl-w[role=button]", has_text=text).first.click()


def slide(page, value, name="lmbda"):
    number = page.locator(f"#{name} input[type=number]")
    number.fill(str(value))
    number.press("Tab")


def explain(one, text):
    one.tab("Explain")
    one.page.locator("#explain-text textarea").fill(text)
    one.mark("#explained")
    one.page.locator("#explain").click()
    one.fresh("#explained", ".kl-foot span")


def test_where_a_word_comes_from_is_seen_at_once_and_by_keys(one, tmp_path):
    page = one.page
    expect(page.locator("h1")).to_have_text("See which sentence every word came from")
    expect(text_of(page)).to_contain_text("adjust the front hose")
    expect(text_of(page, "lm")).not_to_contain_text("adjust the front hose")
    expect(page.locator("#answers .kl-headline")).to_have_text(
        "The memory changed 3 of 4 words, and agreed to 1."
    )
    changed = page.locator("#answers .kl-side-knn .kl-changed").all_inner_texts()
    assert changed == ["adjust", "front", "hose"]
    assert opened(page) in changed
    agreed = page.locator("#answers .kl-side-knn .kl-agreed").first
    assert agreed.inner_text() == "the"
    # No colour on a word that the model was sure of.
    colour = "(one) => getComputedStyle(one).backgroundColor"
    assert agreed.evaluate(colour) == "rgba(0, 0, 0, 0)"
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
    for part in ("Error E529", "weight", "similarity", "p_LM", "p_kNN"):
        assert part.lower() in panel.inner_text().lower()
    assert "by the memory" in word.get_attribute("aria-description")
    word.click()
    expect(panel).to_have_count(0)
    # In its place stand the documents, which light up their words.
    document = page.locator("#answers .kl-docs .kl-part").first
    expect(document).to_contain_text("Error E529 (Kenmouth lathe)")
    document.hover()
    assert page.locator("#answers .kl-lit").all_inner_texts()[:3] == ["adjust", "the", "front"]
    page.locator("#answers .kl-headline").hover()
    expect(page.locator("#answers .kl-lit")).to_have_count(0)
    words(page).first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert opened(page) == page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    page.keyboard.press("Space")
    # The document is read whole, with its passage marked, as often as one wants.
    for leave in ("Escape", "Close the document"):
        page.locator("#answers .kl-open").first.click()
        drawer = page.get_by_role("dialog")
        expect(drawer.locator("mark")).to_have_text("adjust the front hose")
        expect(drawer.locator("mark")).to_be_in_viewport()
        text = drawer.locator(".kl-whole").inner_text()
        assert "Service note for the Kenmouth lathe: E529." in text
        assert text.rstrip().endswith("lever.")
        if leave == "Escape":
            page.keyboard.press(leave)
        else:
            drawer.get_by_role("button", name=leave).click()
        expect(drawer).to_have_count(0)
        assert page.evaluate("document.activeElement.className") == "kl-open"
    with page.expect_download() as download:
        page.locator("#answers").get_by_role("button", name="Download the trace").click()
    download.value.save_as(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json")[0].text == " adjust the front hose."


def test_the_memory_is_of_several_datastores_and_can_be_off(one):
    page = one.page
    one.mark("#answers")
    page.get_by_role("button", name="Travellers thank").click()
    one.fresh("#answers", ".kl-foot span")
    expect(text_of(page)).to_contain_text("the wide bridge")
    expect(page.get_by_label("chronicle")).to_be_checked()
    expect(page.get_by_label("manual")).not_to_be_checked()
    page.get_by_label("manual").check()
    one.write()
    with_knn = text_of(page).inner_text()
    assert "the wide bridge" in with_knn
    assert "chronicle" in page.locator("#answers .kl-store").all_text_contents()
    page.get_by_label("Use the memory (kNN)").uncheck()
    one.write()
    expect(text_of(page)).to_have_count(0)
    expect(text_of(page, "lm")).not_to_contain_text("the wide bridge")
    assert page.locator("#answers [role=button]").count() == 0
    # There is nothing to compare the model alone with.
    compare = page.get_by_label("Compare with the model alone")
    expect(compare).to_be_disabled()
    page.get_by_label("Use the memory (kNN)").check()
    compare.uncheck()
    one.write()
    assert text_of(page).inner_text() == with_knn
    expect(text_of(page, "lm")).to_have_count(0)


def test_settings_repaint_the_words_without_a_request_and_go_back(one):
    page = one.page
    expect(page.locator("#lmbda")).to_contain_text("Memory strength (λ)")
    expect(page.locator("#k")).to_be_hidden()
    page.get_by_role("button", name="More settings").click()
    expect(page.locator("#k")).to_contain_text("Passages consulted (k)")
    expect(page.locator("#temperature")).to_contain_text("Sharpness (τ)")
    formula = page.locator("#side details").get_by_text("p = λ p_kNN + (1 − λ) p_LM")
    expect(formula).to_be_hidden()
    page.locator("#side summary").click()
    expect(formula).to_be_visible()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_word(page, "adjust")
    assert "λ 0.8 here." in page.locator("#answers .kl-with").inner_text()
    slide(page, 0.01)
    note = page.locator("#answers .kl-stale")
    expect(note).to_contain_text("λ 0.01")
    expect(note).to_contain_text("would be different (dotted)")
    expect(page.locator("#answers .kl-dot").first).to_have_text("adjust")
    turns = page.locator("#answers .kl-turns")
    expect(turns).to_contain_text("With these settings it says “No”.")
    slide(page, 0.7)
    expect(page.locator("#answers .kl-dot")).to_have_count(0)
    assert re.search(r"Below λ 0\.\d+ it says “No”", turns.inner_text())
    mixed = page.locator("#answers .kl-bars .kl-chosen td").first
    before = float(mixed.inner_text())
    slide(page, 0.35)
    # The model alone gives the word next to nothing, so half of λ leaves half of p.
    expect(mixed).to_have_text(re.compile(f"{before / 2:.2f}"))
    slide(page, 1, "k")
    expect(note).to_contain_text("k 1,")
    page.get_by_label("Use the memory (kNN)").uncheck()
    expect(page.locator("#answers .kl-changed")).to_have_count(0)
    expect(note).to_contain_text("λ 0,")
    expect(page.locator("#answers .kl-headline")).to_have_text(
        "With these settings the memory has no part: 3 of 4 words would be others."
    )
    expect(page.locator("#answers .kl-panel")).to_contain_text("λ is 0 here, so the memory has")
    page.get_by_label("Use the memory (kNN)").check()
    page.get_by_label("chronicle").check()
    expect(note).to_contain_text("another memory is chosen now")
    page.get_by_label("chronicle").uncheck()
    page.get_by_role("button", name="own settings").click()
    expect(note).to_have_count(0)
    assert asked == []
    slide(page, 0)
    one.write(FIRST)
    assert text_of(page).inner_text() == text_of(page, "lm").inner_text()


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
    yield
    stopped.set()


def test_stop_ends_a_long_text(until_stopped, one):
    page = one.page
    page.get_by_role("button", name="Length and sampling").click()
    expect(page.get_by_label("Randomness").first).to_be_visible()
    page.get_by_label("End with the sentence").uncheck()
    page.get_by_label("number input for Maximum new tokens").fill("128")
    page.get_by_label("number input for Maximum new tokens").press("Tab")
    one.mark("#answers")
    page.locator("#prompt textarea").fill("The")
    page.locator("#write").click()
    page.wait_for_selector("#answers .kl-caret")
    page.locator("#stop").click()
    one.fresh("#answers", ".kl-foot span")
    expect(page.locator("#answers")).to_contain_text("ended early: stopped")
    assert words(page).count() > 0


@pytest.mark.parametrize("how", ["click", "Enter", "example"])
def test_another_request_replaces_the_running_answer(until_stopped, one, how):
    page = one.page
    prompt = page.locator("#prompt textarea")
    prompt.fill(FIRST)
    one.mark("#answers")
    page.locator("#write").click()
    page.wait_for_selector("#answers .kl-caret")
    expect(page.locator("#answers")).to_have_attribute("aria-busy", "true")
    if how == "example":
        page.get_by_role("button", name=BISHOP).click()
    else:
        page.get_by_label("chronicle").check()
        prompt.fill(BISHOP)
        prompt.press("Enter") if how == "Enter" else page.locator("#write").click()
    expect(text_of(page)).to_contain_text("the wide bridge")
    expect(text_of(page).locator(".kl-prompt")).to_have_text(BISHOP)
    # The state ends with the last frame, and not when its time is up.
    page.wait_for_selector("#answers .kl-out[data-done=true]")
    assert page.locator("#answers").get_attribute("aria-busy") == "false"


def test_what_was_stopped_while_it_waited_is_never_run(served, one, client, monkeypatch):
    write, go, prompts = served[1].session.write, threading.Event(), []

    def held(writing, *rest):
        prompts.append(writing.prompt)
        if writing.prompt.startswith("Hold"):
            go.wait(PATIENCE)
        yield from write(writing, *rest)

    monkeypatch.setattr(served[1].session, "write", held)
    busy = [call(client, "generate", *generating(f"Hold {number}")) for number in range(2)]
    eventually(lambda: len(prompts) == len(busy))
    one.page.locator("#prompt textarea").fill("Never written")
    with one.page.expect_response("**/queue/join**"):
        one.page.locator("#write").click()
    expect(one.page.locator("#answers")).to_have_attribute("aria-busy", "true")
    with one.page.expect_response("**/queue/join**"):
        one.page.locator("#stop").click()
    expect(one.page.locator("#answers")).to_have_attribute("aria-busy", "false")
    go.set()
    one.write(BISHOP)
    assert prompts[len(busy) :] == [BISHOP]


def test_an_answer_is_written_in_other_ways_and_comes_back(one):
    page = one.page
    headline = page.locator("#answers .kl-headline")
    back = page.get_by_role("button", name="Back to it")
    open_word(page, "adjust")
    slide(page, 0.01)
    page.locator("#answers").get_by_role("button", name="Write on from here").click()
    expect(text_of(page)).to_contain_text("No document says that.")
    expect(headline).to_contain_text("You chose “No”")
    expect(page.locator("#answers .kl-side-old")).to_contain_text("adjust the front hose")
    back.click()
    expect(text_of(page)).to_contain_text("adjust the front hose")
    expect(page.locator("#answers .kl-side-old")).to_have_count(0)
    page.get_by_role("button", name="own settings").click()
    # Another candidate is followed to its document.
    open_word(page, "front")
    page.locator("#answers .kl-choose", has_text="left").click()
    expect(headline).to_contain_text("You chose “left”: from there on you follow Error E")
    expect(page.locator("#answers .kl-side-knn .kl-begun")).to_have_text(" adjust the left")
    back.click()
    # Without a document the answer is as if it had never been read.
    open_word(page, "adjust")
    page.locator("#answers").get_by_role("button", name="Write without it").first.click()
    expect(headline).to_contain_text("as if “Error E529 (Kenmouth lathe)” had never been read")
    expect(page.locator("#answers .kl-side-knn h2")).to_contain_text("Without “Error E529")
    expect(page.locator("#answers .kl-docs")).not_to_contain_text("Error E529")
    back.click()
    expect(headline).to_contain_text("The memory changed 3 of 4 words")


def test_a_text_is_compared_with_the_documents(one):
    page = one.page
    one.tab("Explain")
    page.locator("#explain").click()
    one.fresh("#explained", ".kl-foot span")
    assert words(page, "#explained").count() > 30
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
    explain(one, "What helps against E529 is this: polish the front hose.")
    expect(headline).to_contain_text("Its neighbors would have written another word at 1")
    assert page.locator("#explained .kl-outvoted[data-word]").all_inner_texts() == ["polish"]
    expect(page.locator("#explained .kl-against")).to_contain_text(
        "The memory’s neighbors would have written adjust here"
    )
    explain(one, "My cat sleeps.")
    expect(headline).to_contain_text("Nothing was compared")


def test_a_text_of_ones_own_is_built_used_private_and_deleted(visit, served, tmp_path):
    one, other = visit(), visit()
    page = one.page
    one.tab("Your text")
    cancel, delete = page.locator("#cancel"), page.locator("#delete")
    expect(cancel).to_be_disabled()
    expect(delete).to_be_disabled()
    # A build that has ended opens another tab, so the page cancels as soon as it can.
    page.get_by_role("button", name="Take a sample text").click()
    page.wait_for_function("document.querySelector('#own-text textarea').value.length > 50")
    page.locator("#own-text textarea").fill("The lamp burns rape oil every night. " * 10_000)
    page.locator("#build").click()
    page.wait_for_function(
        "document.querySelector('#built progress') && "
        "(document.querySelector('#cancel').click(), true)"
    )
    page.wait_for_selector("#built .kl-error")
    expect(page.locator("#built")).to_contain_text("was stopped")
    expect(cancel).to_be_disabled()
    assert page.get_by_label("your text", exact=True).count() == 0
    # Sliders that were moved for another text do not hold for this one.
    slide(page, 0.02)
    (tmp_path / "light.txt").write_text("The lighthouse of Orrin Bay was painted blue in 1931.")
    page.locator("#own-text textarea").fill("Its keeper, Mara Tolliver, wrote into a red book.")
    page.locator("#own-files input[type=file]").set_input_files(tmp_path / "light.txt")
    page.wait_for_selector("#own-files :text('light')")
    one.mark("#built")
    one.build()
    expect(page.locator("#built")).to_contain_text("2 documents")
    expect(page.locator("#prompt textarea")).to_have_value("The lighthouse of Orrin Bay")
    expect(text_of(page)).to_contain_text("painted blue in 1931.")
    assert page.locator("#lmbda input[type=number]").input_value() == "0.8"
    expect(page.locator("#answers .kl-panel")).to_contain_text("light.txt")
    # Others cannot open an answer of one's own text, and do not see it.
    assert page.locator("#answers .kl-copy-link").count() == 0
    assert other.page.get_by_label("your text", exact=True).count() == 0
    one.tab("Your text")
    page.locator("#built [data-try]").nth(1).click()
    expect(text_of(page).locator(".kl-prompt")).to_contain_text("Its keeper")
    one.tab("Your text")
    delete.click()
    page.wait_for_selector("#built :text('deleted')")
    expect(delete).to_be_disabled()
    expect(page.get_by_label("your text", exact=True)).to_have_count(0)
    page.locator("#own-text textarea").fill("The lamp burns rape oil every night.")
    one.mark("#built")
    one.build()
    (folder,) = [one.folder for one in served[1].visitors.by_session.values() if one.folder]
    assert folder.exists()
    page.close()
    eventually(lambda: not folder.exists())


def test_limits_are_said_before_they_bite(one, tmp_path):
    page = one.page
    one.tab("Your text")
    picture, empty, large = (tmp_path / name for name in ("a.png", "b.txt", "c.txt"))
    picture.write_bytes(b"\x89PNG")
    empty.write_bytes(b"")
    large.write_bytes(b"x" * 500_000)
    upload = page.locator("#own-files input[type=file]")
    wrong = page.locator("#own-files-wrong")
    for file, line in (
        (picture, "a.png is no text and no document: .txt, .md"),
        (empty, "b.txt is empty."),
        (large, "The files have 500 KB, but the limit is 400 KB together."),
    ):
        upload.set_input_files(file)
        expect(wrong).to_contain_text(line)
        expect(page.locator("#own-files")).not_to_contain_text(file.stem + ".")
    (tmp_path / "d.txt").write_text("The kiln is old.")
    upload.set_input_files(tmp_path / "d.txt")
    expect(wrong).to_have_count(0)
    # A browser cuts a text that is too long, and says nothing.
    one.tab("Generate")
    page.locator("#prompt textarea").fill("")
    page.locator("#prompt textarea").focus()
    page.keyboard.insert_text("word " * 5_000)
    expect(page.locator("#prompt-wrong")).to_contain_text("25,000 characters, but the limit is 20,")
    expect(page.locator("#prompt textarea")).to_have_value("")
    page.keyboard.insert_text("word")
    expect(page.locator("#prompt-wrong")).to_have_count(0)
    # What only the server knows is one friendly line.
    for tab, place, button, output, text, line in (
        ("Generate", "#prompt", "#write", "#answers", " ", "The prompt is empty"),
        ("Generate", "#prompt", "#write", "#answers", "word " * 600, "shorten it"),
        ("Explain", "#explain-text", "#explain", "#explained", "x", "too short"),
        ("Evaluate", "#evaluate-text", "#evaluate", "#evaluated", "", "empty"),
    ):
        one.tab(tab)
        page.locator(f"{place} textarea").fill(text)
        page.locator(button).click()
        expect(page.locator(f"{output} .kl-error")).to_contain_text(line)
    one.tab("Generate")
    page.get_by_label("manual").uncheck()
    page.locator("#write").click()
    expect(page.locator("#answers .kl-error")).to_contain_text("at least one datastore")
    assert "Traceback" not in page.content()


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
    expect(page.locator("#evaluated")).to_contain_text("lowers the perplexity")
    grid = page.locator("#evaluated .kl-best")
    expect(grid).to_be_hidden()
    page.locator("#evaluated summary").click()
    expect(grid).to_be_visible()
    one.tab("About")
    about = page.get_by_role("tabpanel").filter(visible=True)
    expect(about).to_contain_text("Apache-2.0")
    links = page.locator("a[href*='arxiv.org']")
    assert {link.get_attribute("href")[-10:] for link in links.all()} >= {
        "2305.14625", "2408.11815",
    }  # fmt: skip
    for store in library.stores.values():
        expect(about).to_contain_text(f"{len(store):,} entries")


def test_where_nothing_is_near_the_nearest_is_shown_and_what_can_be_asked(one):
    page = one.page
    one.write("My neighbour's cat likes to sleep in the sun because the weather")
    far = page.locator("#answers .kl-far")
    expect(far).to_contain_text("Nothing near.")
    instead = page.locator("#answers .kl-instead")
    expect(instead).to_contain_text("The nearest passage is:")
    chip = instead.locator(".kl-chip").first
    text = chip.inner_text()
    chip.click()
    expect(text_of(page).locator(".kl-prompt")).to_have_text(text)
    expect(far).to_have_count(0)


def test_an_answer_survives_a_reload_and_earlier_ones_come_back(one, url):
    page = one.page
    assert page.locator("#answers .kl-earlier").count() == 0
    page.get_by_label("chronicle").check()
    slide(page, 0.6)
    long = (
        "At the end of the second shift the foreman of the third hall of Kenmouth asked: "
        "the fault that raises E976 is called"
    )
    one.write(long)
    expect(page.locator("#answers .kl-earlier summary")).to_have_text("Earlier answers (1)")
    written = text_of(page).inner_text()
    page.locator("#answers .kl-earlier summary").click()
    page.locator("#answers .kl-earlier button").click()
    expect(text_of(page)).to_contain_text("adjust the front hose")
    # The name of an answer begins with a whole word.
    name = page.locator("#answers .kl-earlier button .kl-prompt").text_content()
    assert re.match("… (of|the|third|hall|foreman) ", name), name
    one.open()
    expect(text_of(page)).to_have_text(written)
    expect(page.locator("#prompt textarea")).to_have_value(long)
    expect(page.locator("#lmbda input[type=number]")).to_have_value("0.6")
    expect(page.get_by_label("chronicle")).to_be_checked()
    expect(page.locator("#answers .kl-stale")).to_have_count(0)
    one.write(FIRST)
    expect(text_of(page)).to_contain_text("adjust the front hose")
    one.open(f"{url}/?q=The+fault+that&store=manual")
    expect(text_of(page).locator(".kl-prompt")).to_have_text("The fault that")


def test_a_link_fills_runs_and_opens_the_word_also_inside_another_page(visit, url):
    asked = {"q": BISHOP, "store": "chronicle", "word": 2}
    page = visit(url=f"{url}/?{urlencode(asked)}").page
    expect(text_of(page)).to_contain_text("the wide bridge")
    expect(page.locator("#prompt textarea")).to_have_value(BISHOP)
    expect(page.get_by_label("chronicle")).to_be_checked()
    expect(page.get_by_label("manual")).not_to_be_checked()
    word = page.locator("#answers .kl-w[data-word='2']")
    expect(word).to_have_attribute("aria-expanded", "true")
    page = visit(url=f"{url}/?embed=1").page
    expect(text_of(page)).to_contain_text("adjust the front hose")
    expect(page.locator("#answers .kl-panel")).to_be_visible()
    for place in ("#prompt", "#side", ".kl-title", ".kl-top", "#write"):
        expect(page.locator(place)).to_be_hidden()


def test_an_answer_is_taken_along(visit, chromium, tmp_path):
    one = visit(script=COPIED)
    page = one.page
    page.locator("#answers").get_by_role("button", name="Copy with sources").click()
    page.wait_for_function("copied.length")
    text, notes = page.evaluate("copied.pop()").split("\n\n")
    assert text.startswith(f"{FIRST} adjust the front hose")
    assert "[1]" in text
    assert notes.startswith("[1] Error E529 (Kenmouth lathe) (manual)")
    open_word(page, "hose")
    with page.expect_download() as found:
        page.locator("#answers").get_by_role("button", name="Save as a page (HTML)").click()
    found.value.save_as(tmp_path / "answer.html")
    page.locator("#answers").get_by_role("button", name="Copy a link").click()
    page.wait_for_function("copied.length")
    asked = parse_qs(urlsplit(page.evaluate("copied[0]")).query)
    assert (asked["q"], asked["store"], asked["lmbda"]) == ([FIRST], ["manual"], ["0.8"])
    one.open(page.evaluate("copied[0]"))
    expect(page.locator("#answers .kl-w[aria-expanded=true]")).to_have_text("hose")
    # A text that was checked is shared in the same way.
    explain(one, "What helps against E529 is this: polish it.")
    if opened(page, "#explained") != "polish":
        page.locator("#explained .kl-w[role=button]", has_text="polish").click()
    page.locator("#explained").get_by_role("button", name="Copy a link").click()
    page.wait_for_function("copied.length")
    one.open(page.evaluate("copied[0]"))
    expect(page.locator("#explained .kl-w[aria-expanded=true]")).to_have_text("polish")
    # The saved page needs nothing from elsewhere.
    context = chromium.new_context(offline=True)
    saved = context.new_page()
    problems = []
    saved.on("console", lambda one: one.type == "error" and problems.append(one.text))
    saved.on("pageerror", lambda error: problems.append(str(error)))
    saved.goto((tmp_path / "answer.html").as_uri())
    expect(saved.locator(".kl-side-knn .kl-text")).to_contain_text("adjust the front hose")
    expect(saved.locator(".kl-panel mark").first).to_have_text("adjust the front hose")
    other = "adjust" if saved.locator(".kl-panel h3").inner_text() != "adjust" else "front"
    saved.locator(".kl-w[role=button]", has_text=other).click()
    expect(saved.locator(".kl-panel h3")).to_have_text(other)
    context.close()
    assert problems == []


def test_a_word_stays_open_while_the_answer_beside_it_is_written(one, monkeypatch):
    written, put = threading.Event(), TokenStream.put

    def late(self, value):
        if threading.current_thread().name == "write-lm":
            written.wait(PATIENCE)
        put(self, value)

    page = one.page
    monkeypatch.setattr(TokenStream, "put", late)
    page.locator("#prompt textarea").fill(FIRST)
    one.mark("#answers")
    page.locator("#write").click()
    second = page.locator("#answers .kl-side-knn .kl-w[role=button]").nth(1)
    second.click()
    expect(second).to_have_attribute("aria-expanded", "true")
    written.set()
    expect(page.locator("#answers .kl-side-lm .kl-foot span").first).to_be_visible()
    page.wait_for_selector("#answers .kl-out[data-done=true]")
    expect(second).to_have_attribute("aria-expanded", "true")
    # The answer that the page began with is the only earlier one.
    expect(page.locator("#answers .kl-earlier summary")).to_have_text("Earlier answers (1)")


@pytest.mark.parametrize(
    "first", [0, 20, *(pytest.param(one, marks=pytest.mark.soak) for one in (10, 30, 40))]
)
def test_a_link_runs_nothing(visit, url, first):
    """Ten payloads in every value of the address at a time. A link writes, or else explains."""
    payload = " ".join(PAYLOADS[first : first + 10])[:900]
    explains = first % 20 == 0 and first > 0
    asked = dict.fromkeys(VALUES[1:] if explains else VALUES, payload)
    page = visit(url=f"{url}/?{urlencode(asked)}").page
    place = "#explained" if explains else "#answers"
    page.wait_for_selector(f"{place} :is(.kl-error, .kl-foot span)", state="attached")
    page.wait_for_timeout(300)
    assert page.evaluate("window.pwned") is None
