"""What a visitor sees and does with an answer: meaning, documents, settings, other ways."""

import re

import pytest

from app.conftest import expect
from knn_logits import KNNLogitsError
from knn_logits_app.drawer import read_json
from knn_logits_app.page_parts import Server
from knn_logits_app.requests import friendly, rewriting_of
from knn_logits_app.tab_generate import write_json
from knn_logits_app.visitors import Visitors
from knn_logits_app.work import Work

FIRST = "What helps against E529 is this:"


@pytest.fixture
def one(shared):
    """The page with the first example's answer, at its own settings."""
    page = shared.page
    shared.tab("Generate")
    page.get_by_role("button", name="own settings").click()
    for label, wanted in (("manual", True), ("chronicle", False)):
        page.get_by_label(label).set_checked(wanted)
    other = page.locator("#answers .kl-side-old, #answers .kl-stale").count()
    if other or not page.locator("#answers .kl-side-lm").count():
        shared.write(FIRST)
    return shared


def words(page, place="#answers"):
    return page.locator(f"{place} .kl-w[role=button]")


def opened(page):
    return page.locator("#answers .kl-panel h3").inner_text()


def slide(page, value, label="number input for λ, weight of the memory"):
    number = page.get_by_label(label)
    number.fill(str(value))
    number.press("Tab")


def test_a_headline_says_what_the_memory_changed_and_the_first_word_is_such_a_one(one):
    page = one.page
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


def test_the_words_of_one_passage_are_one_span_and_its_document_stands_beside(one):
    page = one.page
    assert "adjust the front hose" in page.locator("#answers .kl-span").first.inner_text()
    page.locator("#answers").get_by_role("button", name="those of the whole text").click()
    part = page.locator("#answers .kl-docs .kl-part").first
    assert "Error E529 (Kenmouth lathe)" in part.inner_text()
    part.hover()
    lit = page.locator("#answers .kl-lit").all_inner_texts()
    assert lit[:4] == ["adjust", "the", "front", "hose"]
    page.locator("#answers .kl-headline").hover()
    expect(page.locator("#answers .kl-lit")).to_have_count(0)
    words(page).nth(0).click()  # a click on a word that is open already would close it
    words(page).nth(2).click()
    assert "Documents of “front”" in page.locator("#answers .kl-docs h2").text_content()


def test_a_document_is_read_whole_with_its_passage_marked(one):
    page = one.page
    page.locator("#answers .kl-open").first.click()
    drawer = page.get_by_role("dialog")
    expect(drawer.locator("mark")).to_have_text("adjust the front hose")
    text = drawer.locator(".kl-whole").inner_text()
    assert "Service note for the Kenmouth lathe: E529." in text
    assert text.rstrip().endswith("lever.")
    expect(drawer.locator("mark")).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    assert page.evaluate("document.activeElement.className") == "kl-open"
    # The same again.
    page.locator("#answers .kl-open").first.click()
    expect(drawer.locator("mark")).to_have_count(1)
    drawer.get_by_role("button", name="Close the document").click()
    expect(drawer).to_have_count(0)


def test_settings_repaint_the_words_without_a_request(one):
    page = one.page
    expect(page.locator("#lmbda")).to_be_visible()
    assert "λ 0.8 here." in page.locator("#answers .kl-with").inner_text()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    slide(page, 0.01)
    note = page.locator("#answers .kl-stale")
    expect(note).to_contain_text("λ 0.01")
    expect(note).to_contain_text("would be different (dotted)")
    expect(page.locator("#answers .kl-dot").first).to_have_text("adjust")
    adjust = words(page).first
    if opened(page) != "adjust":
        adjust.click()
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
    slide(page, 1, "number input for k, neighbors")
    expect(note).to_contain_text("k 1,")
    page.get_by_label("Use the memory (kNN)").uncheck()
    expect(page.locator("#answers .kl-changed")).to_have_count(0)
    expect(note).to_contain_text("λ 0,")
    headline = page.locator("#answers .kl-headline")
    expect(headline).to_have_text(
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


def test_a_word_is_written_on_from_another_way(one):
    page = one.page
    slide(page, 0.01)
    if opened(page) != "adjust":
        words(page).first.click()
    page.locator("#answers").get_by_role("button", name="Write on from here").click()
    new = page.locator("#answers .kl-side-knn .kl-text")
    expect(new).to_contain_text("No document says that.")
    expect(page.locator("#answers .kl-headline")).to_contain_text("You chose “No”")
    expect(page.locator("#answers .kl-side-old")).to_contain_text("adjust the front hose")
    page.get_by_role("button", name="Back to it").click()
    expect(new).to_contain_text("adjust the front hose")
    expect(page.locator("#answers .kl-side-old")).to_have_count(0)


def test_another_candidate_is_followed_to_its_document(one):
    page = one.page
    words(page).nth(2).click() if opened(page) != "front" else None
    choice = page.locator("#answers .kl-choose", has_text="left")
    choice.click()
    headline = page.locator("#answers .kl-headline")
    expect(headline).to_contain_text("You chose “left”: from there on you follow Error E")
    begun = page.locator("#answers .kl-side-knn .kl-begun")
    expect(begun).to_have_text(" adjust the left")
    page.get_by_role("button", name="Back to it").click()


def test_without_a_document_the_answer_is_as_if_it_had_never_been_read(one):
    page = one.page
    if opened(page) != "adjust":
        words(page).first.click()
    page.locator("#answers").get_by_role("button", name="Write without it").first.click()
    headline = page.locator("#answers .kl-headline")
    expect(headline).to_contain_text("as if “Error E529 (Kenmouth lathe)” had never been read")
    assert "Error E529" not in page.locator("#answers .kl-docs").inner_text()
    page.get_by_role("button", name="Back to it").click()
    expect(headline).to_contain_text("The memory changed 3 of 4 words")


def test_explaining_opens_what_the_memory_contradicts(one):
    page = one.page
    one.tab("Explain")
    page.locator("#explain-text textarea").fill("The remedy for E941 is to bend the left lamp.")
    page.locator("#explain").click()
    panel = page.locator("#explained .kl-panel")
    expect(panel).to_contain_text("The memory says straighten here")
    assert panel.locator("h3").inner_text() == "bend"
    assert "Error E941" in panel.locator(".kl-against").inner_text()
    style = "(one) => getComputedStyle(one).textDecorationStyle"
    assert page.locator("#explained .kl-not", has_text="bend").evaluate(style) == "wavy"
    expect(page.locator("#explained .kl-headline")).to_contain_text("The memory contradicts")


def test_an_answer_as_a_page_of_its_own_needs_nothing_from_elsewhere(one, chromium, tmp_path):
    page = one.page
    with page.expect_download() as found:
        page.locator("#answers").get_by_role("button", name="Save as a page (HTML)").click()
    found.value.save_as(tmp_path / "answer.html")
    context = chromium.new_context(offline=True)
    saved = context.new_page()
    problems = []
    saved.on("console", lambda one: one.type == "error" and problems.append(one.text))
    saved.on("pageerror", lambda error: problems.append(str(error)))
    saved.goto((tmp_path / "answer.html").as_uri())
    expect(saved.locator(".kl-side-knn .kl-text")).to_contain_text("adjust the front hose")
    expect(saved.locator(".kl-panel mark").first).to_have_text("adjust the front hose")
    saved.locator(".kl-w[role=button]", has_text="hose").click()
    expect(saved.locator(".kl-panel h3")).to_have_text("hose")
    context.close()
    assert problems == []


HOSTILE = [
    None, "x", {}, {"kind": "else"}, {"kind": "branch", "values": 3},
    {"kind": "branch", "values": [None] * 15}, {"kind": "without", "without": 3},
    {"kind": "branch", "begun": [-1]}, {"kind": "branch", "begun": ["a"]},
    {"kind": "branch", "begun": [10**9]}, {"kind": "without", "without": ["no such document"]},
    {"kind": "without", "without": ["a"] * 99}, {"kind": "branch", "note": ["x" * 9000]},
]  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE)
def test_what_no_page_asks_for_is_one_line(session, content):
    server = Server(session, Visitors(), Work(session))
    values = ["small", ["manual"], 0.8, 8, 0.03, FIRST, True, True, 5, True, False, 1, 1, 0]
    if isinstance(content, dict) and "kind" in content:
        content = {"values": values, **content}

    def ask():
        asked = rewriting_of(content, len(values))
        return list(write_json(server, asked.values, None, asked))

    with pytest.raises(KNNLogitsError) as caught:
        ask()
    assert "\n" not in friendly(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        None, {}, {"store": "manual"}, {"store": ["manual"], "document": "manual-086"},
        {"store": "your text", "document": "a"}, {"store": "manual", "document": "no"},
        {"store": "manual", "document": "manual-086", "places": 3},
        {"store": "manual", "document": "manual-086", "places": [[-1, 1]]},
        {"store": "manual", "document": "manual-086", "places": [[10**9, 1]]},
        {"store": "manual", "document": "manual-086", "places": [[0, 10**9]]},
        {"store": "manual", "document": "manual-086", "places": [[0, 1, 2]]},
        {"store": "manual", "document": "manual-086", "places": [], "turn": "x"},
    ],
)  # fmt: skip
def test_a_document_that_no_page_asks_for_is_one_line(session, content):
    server = Server(session, Visitors(), Work(session))
    given = {"turn": 1, "places": [], **content} if content else content
    with pytest.raises(KNNLogitsError) as caught:
        read_json(server, given, None)
    assert "\n" not in friendly(caught.value)
