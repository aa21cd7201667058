"""Journeys on a wide screen: each visitor does in one go what belongs together."""

import re
import threading
from collections import Counter
from urllib.parse import parse_qs, urlsplit

import pytest

from app.conftest import ATTACH, PATIENCE, eventually, expect, stop_heard
from app.test_raw_requests import call, form
from knn_logits_app.decoding import TokenStream

FIRST_PROMPT = "What helps against E529 is this:"
BISHOP = "Travellers thank Bishop Korrin for"


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


def test_where_a_word_comes_from_is_seen_at_once_and_by_keys(one):
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
    for part in ("Error E529", "of the word", "p_LM", "p_kNN"):
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
    expect(page.locator("#lmbda")).to_contain_text("Memory strength (λ)")
    expect(page.locator("#k")).to_be_hidden()
    page.get_by_role("button", name="More settings").click()
    expect(page.locator("#k")).to_contain_text("Passages consulted (k)")
    expect(page.locator("#temperature")).to_contain_text("Sharpness (temperature τ)")
    formula = page.locator("#side details").get_by_text("p = λ p_kNN + (1 − λ) p_LM")
    expect(formula).to_be_hidden()
    page.locator("#side summary").click()
    expect(formula).to_be_visible()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_word(page, "adjust")
    assert "λ 0.8 here." in page.locator("#answers .kl-with").inner_text()
    turns = page.locator("#answers .kl-turns").inner_text()
    below = float(re.search(r"Below λ (0\.\d+) it says “No”", turns)[1])
    # What is moved does not show in the words, until they are written again.
    note = page.locator("#answers .kl-stale")
    for change, back in (
        (lambda: slide(page, 0.01), lambda: slide(page, 0.8)),
        (page.get_by_label("chronicle").check, page.get_by_label("chronicle").uncheck),
        (lambda: slide(page, 1, "k"), page.get_by_role("button", name="own settings").click),
    ):
        change()
        expect(note).to_contain_text("do not show the settings at the side")
        back()
        expect(note).to_have_count(0)
    assert asked == []
    slide(page, below * 0.9)
    one.mark("#answers .kl-grid")
    note.get_by_role("button", name="Write again").click()
    expect(text_of(page)).to_contain_text("No")
    expect(note).to_have_count(0)
    slide(page, 0)
    one.write(FIRST_PROMPT)
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
    yield lambda: (started.clear(), stopped.clear(), steps.clear())
    stopped.set()


def test_a_long_text_is_stopped_and_another_one_replaced(until_stopped, one):
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
    until_stopped()
    prompt = page.locator("#prompt textarea")
    prompt.fill(FIRST_PROMPT)
    one.mark("#answers")
    page.locator("#write").click()
    page.wait_for_selector("#answers .kl-caret")
    expect(page.locator("#answers")).to_have_attribute("aria-busy", "true")
    page.get_by_label("chronicle").check()
    prompt.fill(BISHOP)
    prompt.press("Enter")
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
    busy = [call(client, form(f"Hold {number}")) for number in range(2)]
    eventually(lambda: len(prompts) == len(busy))
    one.page.locator("#prompt textarea").fill("Never written")
    with one.page.expect_response("**/queue/join**"):
        one.page.locator("#write").click()
    expect(one.page.locator("#answers")).to_have_attribute("aria-busy", "true")
    # A visitor who waits sees the place in the queue.
    place = one.page.locator("#answers > [data-testid=status-tracker]")
    expect(place).to_have_text(re.compile("queue: 1/1"))
    expect(place).to_have_css("opacity", "1")
    with stop_heard(served[1], monkeypatch):
        one.page.locator("#stop").click()
    expect(one.page.locator("#answers")).to_have_attribute("aria-busy", "false")
    go.set()
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
    expect(headline).to_contain_text("The memory changed 3 of 4 words")


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
    explain(one, "My cat sleeps.")
    expect(headline).to_contain_text("Nothing was compared")


DROP = """([name, text]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  for (const kind of ["dragover", "drop"]) {
    const event = new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true });
    document.querySelector("#chat-form").dispatchEvent(event);
  }
}"""


def test_documents_of_ones_own_are_attached_asked_and_private(visit, served, tmp_path):
    one, other = visit(), visit()
    page = one.page
    one.tab("Chat")
    stop, build = page.locator("#chat-stop"), page.locator("#chat p.kl-looking")
    dividers, mine = page.locator("#chat .kl-divider"), page.get_by_label("light.md and 1 more")
    # A build is stopped at once.
    (tmp_path / "long.txt").write_text("The lamp burns rape oil every night. " * 10_000)
    page.locator(ATTACH).set_input_files(tmp_path / "long.txt")
    expect(page.locator("#chat")).to_contain_text("computing keys")
    stop.click()
    expect(page.locator("#chat .kl-error")).to_contain_text("stopped")
    expect(stop).to_be_disabled()
    expect(mine).to_have_count(0)
    # Sliders that were moved for another text do not hold for this one.
    one.tab("Generate")
    slide(page, 0.02)
    (tmp_path / "light.md").write_text("# Light\n\nThe lighthouse of Orrin Bay was painted blue.")
    (tmp_path / "book.txt").write_text("Its keeper, Mara Tolliver, wrote into a red book.")
    one.attach(tmp_path / "light.md", tmp_path / "book.txt")
    expect(dividers).to_contain_text("Now asking: light.md and 1 more (2 documents, ")
    expect(mine).to_be_checked()
    expect(page.get_by_label("manual")).not_to_be_checked()
    expect(page.get_by_label("Your question")).to_be_focused()
    page.get_by_label("Your question").fill("Which colour has the lighthouse of Orrin Bay?")
    page.keyboard.press("Enter")
    expect(page.locator("#chat .kl-reply")).to_contain_text("painted blue.")
    # Only the quoted sentence of the passage is marked.
    page.locator("#chat .kl-reply summary").first.click()
    page.locator("#chat .kl-reply").get_by_role("button", name="Read the document").click()
    drawer = page.get_by_role("dialog")
    expect(drawer.locator("mark")).to_have_text("The lighthouse of Orrin Bay was painted blue.")
    page.keyboard.press("Escape")
    one.tab("Generate")
    one.write("The lighthouse of Orrin Bay was")
    assert page.locator("#lmbda input[type=number]").input_value() == "0.8"
    expect(text_of(page)).to_contain_text("painted blue.")
    open_word(page, "painted")
    expect(page.locator("#answers .kl-panel")).to_contain_text("light.md")
    # Markdown is shown as what it means.
    page.locator("#answers .kl-open").first.click()
    expect(page.get_by_role("dialog").locator(".kl-whole b").first).to_have_text("Light")
    page.keyboard.press("Escape")
    # Others cannot open an answer of one's own documents, and do not see them.
    assert page.locator("#answers .kl-again").count() == 0
    assert other.page.locator("#stores label").all_inner_texts() == ["manual", "chronicle"]
    one.tab("Chat")
    # A file that is dropped is attached as well.
    page.evaluate(DROP, ["seals.txt", "The keeper counts the seals on the first Sunday of May."])
    expect(dividers.last).to_contain_text("Now asking: seals.txt")
    expect(dividers.last).to_contain_text("in place of light.md and 1 more")
    expect(page.get_by_label("seals.txt")).to_be_checked()
    expect(mine).to_have_count(0)
    expect(build).to_have_text("")
    # A question after a divider has a number of its own.
    page.get_by_label("Your question").fill("When does the keeper count the seals?")
    page.keyboard.press("Enter")
    expect(page.locator("#chat .kl-reply").last).to_contain_text("first Sunday of May.")
    # A page that is loaded again has lost them, and the browser asks before.
    (folder,) = [one.folder for one in served[1].visitors.by_session.values() if one.folder]
    assert folder.exists()
    one.open()
    assert one.asked_to_leave
    expect(page.locator("#chat .kl-divider")).to_have_count(0)
    expect(page.locator("#chat .kl-error")).to_contain_text("without your documents")
    eventually(lambda: not folder.exists())


def test_limits_are_said_before_they_bite(one, tmp_path):
    page = one.page
    one.tab("Chat")
    picture, empty, large = (tmp_path / name for name in ("a.png", "b.txt", "c.txt"))
    picture.write_bytes(b"\x89PNG")
    empty.write_bytes(b"")
    large.write_bytes(b"x" * 500_000)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    wrong = page.locator("#chat-line-wrong")
    for file, line in (
        (picture, "a.png is no text and no document: .txt, .md"),
        (empty, "b.txt is empty."),
        (large, "The files have 0.5 MB, but the limit is 0.4 MB together."),
    ):
        page.locator(ATTACH).set_input_files(file)
        expect(wrong).to_contain_text(line)
    assert asked == []
    (tmp_path / "d.txt").write_text("The kiln is old.")
    one.attach(tmp_path / "d.txt")
    expect(wrong).to_have_count(0)
    # What only the server knows is a line as well.
    (tmp_path / "e.jsonl").write_text('{"title": "no text"}\n')
    one.attach(tmp_path / "e.jsonl")
    expect(page.locator("#chat .kl-error")).to_contain_text("e.jsonl cannot be read")
    # A browser cuts a text that is too long, and says nothing.
    one.tab("Generate")
    page.locator("#prompt textarea").fill("")
    page.locator("#prompt textarea").focus()
    page.keyboard.insert_text("word " * 5_000)
    expect(page.locator("#prompt-wrong")).to_contain_text("25,000 characters, but the limit is 20,")
    expect(page.locator("#prompt textarea")).to_have_value("")
    page.keyboard.insert_text("word")
    expect(page.locator("#prompt-wrong")).to_have_count(0)
    for tab, place, button, output, text, line in (
        ("Generate", "#prompt", "#write", "#answers", "word " * 600, "shorten it"),
        ("Explain", "#explain-text", "#explain", "#explained", "x", "too short"),
        ("Evaluate", "#evaluate-text", "#evaluate", "#evaluated", "", "empty"),
    ):
        one.tab(tab)
        page.locator(f"{place} textarea").fill(text)
        page.locator(button).click()
        expect(page.locator(f"{output} .kl-error")).to_contain_text(line)
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
    page.locator("#side summary").click()
    for store in library.stores.values():
        line = re.compile(rf"{len(store):,} entries, .*Apache-2.0")
        expect(page.locator("#side details p", has_text=line)).to_be_visible()


def test_an_answer_survives_a_reload(one):
    page = one.page
    page.get_by_label("chronicle").check()
    slide(page, 0.6)
    one.write("The fault that raises E976 is called")
    written = text_of(page).inner_text()
    one.open()
    expect(text_of(page)).to_have_text(written)
    expect(page.locator("#prompt textarea")).to_have_value("The fault that raises E976 is called")
    expect(page.locator("#lmbda input[type=number]")).to_have_value("0.6")
    expect(page.get_by_label("chronicle")).to_be_checked()
    expect(page.locator("#answers .kl-stale")).to_have_count(0)
    one.write(FIRST_PROMPT)
    expect(text_of(page)).to_contain_text("adjust the front hose")


def test_a_link_opens_an_answer_at_its_word(one):
    page = one.page
    open_word(page, "hose")
    link = page.locator("#answers .kl-again").get_attribute("href")
    asked = parse_qs(urlsplit(link).query)
    assert (asked["q"], asked["store"], asked["lmbda"]) == ([FIRST_PROMPT], ["manual"], ["0.8"])
    one.open(link)
    expect(page.locator("#answers .kl-w[aria-expanded=true]")).to_have_text("hose")
    # A text that was checked is shared in the same way.
    explain(one, "What helps against E529 is this: polish it.")
    if opened(page, "#explained") != "polish":
        page.locator("#explained .kl-w[role=button]", has_text="polish").click()
    one.open(page.locator("#explained .kl-again").get_attribute("href"))
    expect(page.locator("#explained .kl-w[aria-expanded=true]")).to_have_text("polish")
