"""Journeys on a phone, and what those see who link to the page."""

import httpx
import pytest

from app.conftest import expect

FIRST_PROMPT = "What helps against E529 is this:"
WORD = "#answers .kl-side-knn .kl-changed[role=button]"


@pytest.fixture(params=[pytest.param("light", marks=pytest.mark.soak), "dark"])
def phone(visit, request):
    one = visit(390, request.param)
    one.page.set_viewport_size({"width": 390, "height": 844})
    yield one
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_answer_is_seen_and_its_sources_are_a_sheet(phone):
    page = phone.page
    # Nothing covers the answer before a word is chosen.
    assert page.locator("#answers .kl-panel").count() == 0
    phone.write(FIRST_PROMPT)
    word = page.locator(WORD).first
    expect(word).to_be_in_viewport()
    box = page.locator("#answers .kl-side-knn").bounding_box()
    assert box["y"] < page.locator("#answers .kl-side-lm").bounding_box()["y"]
    word.click()
    sheet = page.locator("#answers .kl-panels")
    expect(sheet).to_be_in_viewport()
    assert sheet.evaluate("(one) => getComputedStyle(one).position") == "fixed"
    expect(sheet.locator(".kl-sources").first).to_contain_text("Error E529 (Kenmouth lathe)")
    top = sheet.bounding_box()["y"]
    assert top >= 0.37 * 844
    # The sheet leaves the word in sight.
    page.wait_for_function(
        "(top) => { const box = document.querySelector('#answers [aria-expanded=true]')"
        ".getBoundingClientRect(); return box.top >= 0 && box.bottom <= top; }",
        arg=top,
    )
    # What is touched is large enough.
    small = page.evaluate(
        "[...document.querySelectorAll('#answers :is(button, summary, a), [type=checkbox]')]"
        ".filter((one) => one.checkVisibility({ visibilityProperty: true }))"
        ".map((one) => [one.textContent, one.getBoundingClientRect()])"
        ".filter(([, box]) => box.width < 24 || box.height < 24).map(([text]) => text)"
    )
    assert small == []
    # Back closes it, as the button does, and stays on the page.
    page.go_back()
    expect(page.locator("#answers .kl-panel")).to_have_count(0)
    for close in (page.locator("#answers").get_by_label("Close the sources").click, page.go_back):
        word.click()
        expect(sheet).to_be_in_viewport()
        close()
        expect(page.locator("#answers .kl-panel")).to_have_count(0)
    missed = page.evaluate(
        "[...document.querySelectorAll('#answers .kl-w[role=button]')].flatMap((one) => {"
        "  one.scrollIntoView({ block: 'center' });"
        "  const box = one.getBoundingClientRect();"
        "  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];"
        "  return [[0, -12], [0, 11]].filter(([right, down]) =>"
        "    document.elementFromPoint(x + right, y + down)?.closest('.kl-w') !== one)"
        "    .map(() => one.textContent); })"
    )
    assert missed == []


def test_every_tab_is_there_and_settings_and_documents_are_sheets(phone):
    page = phone.page
    for chip in page.locator(".kl-chips button").all():
        box = chip.bounding_box()
        assert box["x"] + box["width"] <= 390
    for name in ("Generate", "Chat", "Explain", "Evaluate"):
        expect(page.get_by_role("tab", name=name)).to_be_in_viewport()
    page.locator("#answers .kl-docs .kl-part").first.click()
    drawer = page.get_by_role("dialog")
    expect(drawer.locator("mark").first).to_be_in_viewport()
    assert drawer.bounding_box()["width"] == 390
    drawer.get_by_role("button", name="Close the document").click()
    expect(drawer).to_have_count(0)
    side = page.locator("#side")
    expect(side).to_be_hidden()
    gear = page.locator("#open-settings")
    assert min(gear.bounding_box()[size] for size in ("width", "height")) >= 40
    gear.click()
    expect(side).to_be_visible()
    expect(page.get_by_label("chronicle")).to_be_in_viewport()
    page.get_by_label("chronicle").check()
    expect(page.locator("#answers .kl-stale")).to_contain_text("do not show the current settings")
    page.keyboard.press("Escape")
    expect(side).to_be_hidden()
    page.locator("#open-settings").click()
    expect(side).to_be_visible()
    page.go_back()
    expect(side).to_be_hidden()


def test_the_page_says_what_it_is_to_those_who_link_to_it(url):
    # Sites that preview a link read the HTML, and run no script.
    head = httpx.get(url).text
    assert 'property="og:title" content="knn-logits: a language model with a memory' in head
    icon = httpx.get(f"{url}/favicon.ico")
    assert icon.headers["content-type"] == "image/svg+xml"
