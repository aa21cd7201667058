"""The page on a phone, by keys, and what the prompt's box does."""

import html
import re

import httpx
import pytest

from app.conftest import expect

FIRST = "What helps against E529 is this:"


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
    phone.write(FIRST)
    word = page.locator("#answers .kl-changed[role=button]").first
    expect(word).to_be_in_viewport()
    box = page.locator("#answers .kl-side-knn").bounding_box()
    assert box["y"] < page.locator("#answers .kl-side-lm").bounding_box()["y"]
    word.click()
    sheet = page.locator("#answers .kl-panels")
    expect(sheet).to_be_in_viewport()
    assert sheet.evaluate("(one) => getComputedStyle(one).position") == "fixed"
    top = sheet.bounding_box()["y"]
    assert top >= 0.37 * 844
    # The sheet leaves the word in sight.
    page.wait_for_function(
        "(top) => { const box = document.querySelector('#answers [aria-expanded=true]')"
        ".getBoundingClientRect(); return box.top >= 0 && box.bottom <= top; }",
        arg=top,
    )
    page.locator("#answers").get_by_role("button", name="Close the sources").click()
    expect(page.locator("#answers .kl-panel")).to_have_count(0)


def test_every_tab_is_there_and_settings_and_documents_are_sheets(phone):
    page = phone.page
    for name in ("Generate", "Chat", "Explain", "Your text", "Evaluate", "About"):
        expect(page.get_by_role("tab", name=name)).to_be_in_viewport()
    page.locator("#answers .kl-docs .kl-part").first.click()
    drawer = page.get_by_role("dialog")
    expect(drawer.locator("mark").first).to_be_in_viewport()
    assert drawer.bounding_box()["width"] == 390
    drawer.get_by_role("button", name="Close the document").click()
    expect(drawer).to_have_count(0)
    side = page.locator("#side")
    expect(side).to_be_hidden()
    page.locator("#open-settings").click()
    expect(side).to_be_visible()
    expect(page.get_by_label("chronicle")).to_be_in_viewport()
    page.get_by_label("chronicle").check()
    expect(page.locator("#answers .kl-stale")).to_contain_text("another memory")
    page.keyboard.press("Escape")
    expect(side).to_be_hidden()


def test_enter_writes_and_shift_enter_breaks_the_line(visit):
    one = visit()
    page = one.page
    prompt = page.locator("#prompt textarea")
    prompt.fill("The fault that")
    prompt.press("Shift+Enter")
    prompt.type("raises")
    expect(prompt).to_have_value("The fault that\nraises")
    assert page.locator("#answers .kl-prompt").first.inner_text() == FIRST
    prompt.fill("The fault that raises E976 is called")
    one.mark("#answers")
    prompt.press("Enter")
    one.fresh("#answers", ".kl-foot span")
    shown = page.locator("#answers .kl-side-knn .kl-prompt")
    expect(shown).to_have_text("The fault that raises E976 is called")
    expect(prompt).to_have_value("The fault that raises E976 is called")


def test_the_page_says_what_it_is_to_those_who_link_to_it(visit, url):
    # Sites that preview a link read the HTML, and run no script.
    answer = httpx.get(url)
    head = answer.text.partition("</style>")[0]
    found = dict(re.findall(r'<meta (?:property|name)="([a-z:]+)" content="([^"]*)">', head))
    assert found["og:title"] == found["twitter:title"] == html.unescape(found["og:title"])
    assert "memory" in found["og:title"]
    assert found["og:description"] == found["description"]
    assert found["og:url"] == f"{url}/"
    assert f"<title>{found['og:title']}</title>" in head
    assert answer.text.count('property="og:title"') == 1
    assert "Gradio" not in head
    icon = httpx.get(f"{url}/favicon.ico")
    assert icon.headers["content-type"] == "image/svg+xml"
    page = visit().page
    assert page.title() == found["og:title"]
    assert page.locator("link[rel='icon'][href^='data:image/svg']").count() == 1
