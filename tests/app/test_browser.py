"""The page in a browser: what a visitor does, and what stands there then."""

import threading
from collections import Counter

import pytest

from app.conftest import PATIENCE, eventually, expect
from app.test_raw_requests import call, generating
from knn_logits import Trace
from knn_logits_app.decoding import TokenStream


@pytest.fixture
def open_page(visit):
    return visit()


def shown(one, side):
    return one.page.locator(f"#answers .kl-side-{side} .kl-text").inner_text()


def test_a_first_visitor_sees_an_answer_with_its_source_and_takes_its_trace(open_page, tmp_path):
    one = open_page
    assert "adjust the front hose" in shown(one, "knn")
    assert "adjust the front hose" not in shown(one, "lm")
    panel = one.page.locator("#answers .kl-panel:visible")
    assert panel.count() == 1
    assert "Error E529 (Kenmouth lathe)" in panel.inner_text()
    assert panel.locator("mark").first.inner_text()
    with one.page.expect_download() as download:
        one.page.get_by_role("button", name="Download the trace").click()
    download.value.save_as(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json")[0].text == " adjust the front hose."


def test_several_datastores_are_one_memory_and_the_switch_changes_the_words(open_page):
    one = open_page
    prompt = "Travellers thank Bishop Korrin for"
    one.page.get_by_label("chronicle").check()
    one.write(prompt)
    with_knn = shown(one, "knn")
    assert "the wide bridge" in with_knn
    assert "chronicle" in one.page.locator("#answers .kl-store").all_text_contents()
    one.page.get_by_label("Use the memory (kNN)").uncheck()
    one.write()
    assert one.page.locator("#answers .kl-side-knn").count() == 0
    assert "the wide bridge" not in shown(one, "lm")
    assert one.page.locator("#answers [role=button]").count() == 0
    # There is nothing to compare the model alone with.
    compare = one.page.get_by_label("Compare with the model alone")
    expect(compare).to_be_disabled()
    one.page.get_by_label("Use the memory (kNN)").check()
    expect(compare).to_be_enabled()
    one.page.get_by_label("Compare with the model alone").uncheck()
    one.write()
    assert shown(one, "knn") == with_knn
    assert one.page.locator("#answers .kl-side-lm").count() == 0


def test_an_example_is_written_with_its_datastore(open_page):
    one = open_page
    one.mark("#answers")
    one.page.get_by_role("button", name="Travellers thank").click()
    one.fresh("#answers", ".kl-foot span")
    assert "the wide bridge" in shown(one, "knn")
    assert one.page.get_by_label("chronicle").is_checked()
    assert not one.page.get_by_label("manual").is_checked()


def test_a_click_opens_the_sources_of_a_word_and_another_closes_them(open_page):
    one = open_page
    words = one.page.locator("#answers .kl-w[role=button]")
    # The word that owes most to the memory is open already.
    closed = [at for at in range(words.count())
              if words.nth(at).get_attribute("aria-expanded") != "true"]  # fmt: skip
    word = words.nth(closed[0])
    word.click()
    panel = one.page.locator("#answers .kl-panel:visible")
    assert panel.locator("h3").inner_text() == word.inner_text()
    text = panel.inner_text()
    for part in ("Error E529", "weight", "similarity", "p_LM", "p_kNN", "by the memory"):
        assert part.lower() in (text + (word.get_attribute("aria-description") or "")).lower()
    assert word.get_attribute("aria-expanded") == "true"
    word.click()
    assert panel.count() == 0
    # The keyboard alone reaches a source, too.
    page = one.page
    page.locator("#answers .kl-w[role=button]").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    word = page.evaluate("document.activeElement.textContent")
    assert panel.locator("h3").inner_text() == word
    page.keyboard.press("Escape")
    assert panel.count() == 0
    page.locator("#prompt textarea").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('#answers .kl-w[role=button]')"):
            break
    page.keyboard.press("Space")
    assert panel.count() == 1


def test_settings_change_the_answer_and_go_back(open_page):
    one = open_page
    number = one.page.get_by_label("number input for λ, weight of the memory")
    number.fill("0")
    number.press("Tab")
    one.write("What helps against E529 is this:")
    assert shown(one, "knn") == shown(one, "lm")
    one.page.get_by_role("button", name="own settings").click()
    expect(number).to_have_value("0.8")
    one.write()
    assert "adjust the front hose" in shown(one, "knn")


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


def test_stop_ends_a_long_text(until_stopped, open_page):
    one = open_page
    one.page.get_by_role("button", name="Length and sampling").click()
    one.page.get_by_label("End with the sentence").uncheck()
    one.page.get_by_label("number input for Maximum new tokens").fill("128")
    one.page.get_by_label("number input for Maximum new tokens").press("Tab")
    one.mark("#answers")
    one.page.locator("#prompt textarea").fill("The")
    one.page.locator("#write").click()
    one.page.wait_for_selector("#answers .kl-caret")
    one.page.locator("#stop").click()
    one.fresh("#answers", ".kl-foot span")
    assert "ended early: stopped" in one.page.locator("#answers").inner_text()
    assert one.page.locator("#answers .kl-w[role=button]").count() > 0


def test_what_was_stopped_while_it_waited_is_never_run(served, open_page, client, monkeypatch):
    one = open_page
    write, go, prompts = served[1].session.write, threading.Event(), []

    def held(library, writing, *rest):
        prompts.append(writing.prompt)
        if writing.prompt.startswith("Hold"):
            go.wait(PATIENCE)
        yield from write(library, writing, *rest)

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
    one.write("Travellers thank Bishop Korrin for")
    assert prompts[len(busy) :] == ["Travellers thank Bishop Korrin for"]


@pytest.mark.parametrize("how", ["click", "Enter", "example"])
def test_another_request_replaces_the_running_answer(until_stopped, open_page, how):
    page = open_page.page
    prompt = page.locator("#prompt textarea")
    prompt.fill("What helps against E529 is this:")
    open_page.mark("#answers")
    page.locator("#write").click()
    page.wait_for_selector("#answers .kl-caret")
    expect(page.locator("#answers")).to_have_attribute("aria-busy", "true")
    wanted = "Travellers thank Bishop Korrin for"
    if how == "example":
        page.get_by_role("button", name=wanted).click()
    else:
        page.get_by_label("chronicle").check()
        prompt.fill(wanted)
        prompt.press("Enter") if how == "Enter" else page.locator("#write").click()
    expect(page.locator("#answers .kl-side-knn .kl-text")).to_contain_text("the wide bridge")
    expect(page.locator("#answers .kl-side-knn .kl-prompt")).to_have_text(wanted)
    # The state ends with the last frame, and not when its time is up.
    page.wait_for_selector("#answers .kl-out[data-done=true]")
    assert page.locator("#answers").get_attribute("aria-busy") == "false"


def test_a_text_is_explained(open_page):
    one = open_page
    one.tab("Explain")
    one.page.locator("#explain").click()
    one.fresh("#explained", ".kl-foot span")
    words = one.page.locator("#explained .kl-w[role=button]")
    assert words.count() > 30
    word = one.page.locator("#explained .kl-w", has_text="straighten")
    # The most surprising word is open from the beginning, and a click would close it.
    if word.get_attribute("aria-expanded") == "false":
        word.click()
    assert "Error E941" in one.page.locator("#explained .kl-panel:visible").inner_text()


def test_a_text_of_ones_own_is_built_used_and_private(visit, served, tmp_path):
    one, other = visit(), visit()
    one.tab("Your text")
    (tmp_path / "light.txt").write_text("The lighthouse of Orrin Bay was painted blue in 1931.")
    one.page.locator("#own-files input[type=file]").set_input_files(tmp_path / "light.txt")
    one.page.wait_for_selector("#own-files :text('light')")
    one.build()
    assert "1 document" in one.page.locator("#built").text_content()
    assert one.page.get_by_label("your text", exact=True).is_checked()
    one.tab("Generate")
    one.write("The lighthouse of Orrin Bay was")
    assert "painted blue in 1931." in shown(one, "knn")
    assert "light.txt" in one.page.locator("#answers .kl-panel:visible").inner_text()
    assert other.page.get_by_label("your text", exact=True).count() == 0
    visitors = served[1].visitors
    (folder,) = [one.folder for one in visitors.by_session.values() if one.folder]
    assert folder.exists()
    one.page.close()
    for _ in range(360):
        if not folder.exists():
            break
        other.page.wait_for_timeout(500)
    assert not folder.exists()


def test_a_build_is_cancelled_and_a_text_deleted(open_page):
    one = open_page
    one.tab("Your text")
    cancel, delete = one.page.locator("#cancel"), one.page.locator("#delete")
    expect(cancel).to_be_disabled()
    expect(delete).to_be_disabled()
    one.page.get_by_role("button", name="Take a sample text").click()
    one.page.wait_for_function("document.querySelector('#own-text textarea').value.length > 50")
    one.page.locator("#own-text textarea").fill("The lamp burns rape oil every night. " * 10_000)
    one.page.locator("#build").click()
    # Cancelled by the page as soon as it can be: a build that has ended opens another tab.
    one.page.wait_for_function(
        "document.querySelector('#built progress') && "
        "(document.querySelector('#cancel').click(), true)"
    )
    one.page.wait_for_selector("#built .kl-error")
    assert "was stopped" in one.page.locator("#built").inner_text()
    expect(cancel).to_be_disabled()
    expect(delete).to_be_disabled()
    assert one.page.get_by_label("your text", exact=True).count() == 0
    one.page.locator("#own-text textarea").fill("The lamp burns rape oil every night.")
    one.mark("#built")
    one.build()
    one.tab("Your text")
    delete.click()
    one.page.wait_for_selector("#built :text('deleted')")
    expect(delete).to_be_disabled()
    expect(one.page.get_by_label("your text", exact=True)).to_have_count(0)


def test_a_text_is_measured_with_a_heat_map(open_page):
    one = open_page
    one.tab("Evaluate")
    one.page.locator("#evaluate").click()
    one.page.wait_for_selector("#evaluated .kl-heat")
    text = one.page.locator("#evaluated").inner_text()
    assert "lowers the perplexity" in text
    assert one.page.locator("#evaluated .kl-best").count() == 1


MISTAKES = [
    ("Generate", "#prompt", "#write", "#answers", " ", "The prompt is empty"),
    ("Generate", "#prompt", "#write", "#answers", "word " * 600, "shorten it"),
    ("Explain", "#explain-text", "#explain", "#explained", "x", "too short"),
    ("Evaluate", "#evaluate-text", "#evaluate", "#evaluated", "", "empty"),
    ("Your text", "#own-text", "#build", "#built", "", "no text yet"),
]


def test_a_mistake_is_one_friendly_line(open_page):
    one = open_page
    for tab, place, button, output, text, line in MISTAKES:
        one.tab(tab)
        one.page.locator(f"{place} textarea").fill(text)
        one.page.locator(button).click()
        expect(one.page.locator(f"{output} .kl-error")).to_contain_text(line)
    one.tab("Generate")
    one.page.get_by_label("manual").uncheck()
    one.page.locator("#write").click()
    expect(one.page.locator("#answers .kl-error")).to_contain_text("at least one datastore")
    assert "Traceback" not in one.page.content()


def test_where_nothing_is_near_the_nearest_is_shown_and_what_can_be_asked(visit):
    one = visit()
    page = one.page
    one.write("My neighbour's cat likes to sleep in the sun because the weather")
    far = page.locator("#answers .kl-far")
    expect(far).to_contain_text("Nothing near.")
    instead = page.locator("#answers .kl-instead")
    expect(instead).to_contain_text("The nearest passage is:")
    chip = instead.locator(".kl-chip").first
    text = chip.inner_text()
    chip.click()
    expect(page.locator("#answers .kl-side-knn .kl-prompt")).to_have_text(text)
    expect(page.locator("#answers .kl-far")).to_have_count(0)


def test_about_names_the_limits_and_the_datastores(open_page, library):
    one = open_page
    one.tab("About")
    shown = one.page.get_by_role("tabpanel").filter(visible=True)
    expect(shown).to_contain_text("Apache-2.0")
    links = one.page.locator("a[href*='arxiv.org']")
    assert {link.get_attribute("href")[-10:] for link in links.all()} >= {
        "2305.14625", "2408.11815",
    }  # fmt: skip
    for store in library.stores.values():
        expect(shown).to_contain_text(f"{len(store):,} entries")


def test_an_answer_and_its_settings_survive_a_reload_and_a_link_replaces_them(open_page, url):
    one, page = open_page, open_page.page
    page.get_by_label("chronicle").check()
    number = page.get_by_label("number input for λ, weight of the memory")
    number.fill("0.6")
    number.press("Tab")
    one.write("Travellers thank Bishop Korrin for")
    words = shown(one, "knn")
    one.open()
    expect(page.locator("#answers .kl-side-knn .kl-text")).to_have_text(words)
    expect(page.locator("#prompt textarea")).to_have_value("Travellers thank Bishop Korrin for")
    expect(number).to_have_value("0.6")
    expect(page.get_by_label("chronicle")).to_be_checked()
    expect(page.locator("#answers .kl-stale")).to_have_count(0)
    # It can be written on, and the next answer takes its place.
    one.write("What helps against E529 is this:")
    assert "adjust the front hose" in shown(one, "knn")
    one.open(f"{url}/?q=The+fault+that&store=manual")
    expect(page.locator("#answers .kl-side-knn .kl-prompt")).to_have_text("The fault that")
