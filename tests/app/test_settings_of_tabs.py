"""The settings at the side: those that the tab that is open uses, until a visitor moves them."""

import pytest
from conftest import TEXTS
from trusting import with_trust

from app.conftest import expect, serving
from knn_logits_app.library import Library
from knn_logits_app.page_parts import values_of

NAMES = ("lmbda", "k", "temperature")


@pytest.fixture(scope="module")
def memory(store):
    # Written text has k 8, λ 0.7 and τ 2, and scored text what the datastore has.
    return with_trust(store, 1e6)


@pytest.fixture(scope="module")
def page(model, tokenizer, memory, windows):
    library = Library.of("tiny", model, tokenizer, [memory], [TEXTS[1][:30]])
    with serving(library) as (url, _):
        yield url


def number(one, name):
    return one.page.locator(f"#{name} input[type=number]")


def shows(one, settings):
    for name, value in settings.items():
        expect(number(one, name)).to_have_value(f"{value:g}")


def test_each_tab_shows_the_settings_that_it_uses(visit, page, memory):
    writing, scoring = (values_of(memory, scores=scores) for scores in (False, True))
    assert all(writing[name] != scoring[name] for name in ("lmbda", "temperature"))
    one = visit(url=page)
    shows(one, writing)
    one.tab("Evaluate")
    shows(one, scoring)
    one.page.locator("#evaluate").click()
    used = f"The memory has k {scoring['k']}, λ {scoring['lmbda']:g}, τ {scoring['temperature']:g}"
    expect(one.page.locator("#evaluated")).to_contain_text(used)
    one.tab("Explain")
    shows(one, scoring)
    one.page.locator("#explain").click()
    one.fresh("#explained", ".kl-foot span, .kl-notice")
    # The answer shows the settings at the side.
    assert one.page.locator("#explained .kl-stale").count() == 0
    one.tab("Generate")
    shows(one, writing)


def test_a_moved_setting_stays_and_the_others_follow_the_tab(visit, page, memory):
    writing, scoring = (values_of(memory, scores=scores) for scores in (False, True))
    one = visit(url=page)
    one.tab("Evaluate")
    shows(one, scoring)
    number(one, "lmbda").fill("0.5")
    number(one, "lmbda").press("Tab")
    one.page.locator("#evaluate").click()
    expect(one.page.locator("#evaluated")).to_contain_text("λ 0.5, τ")
    one.tab("Generate")
    shows(one, {**writing, "lmbda": 0.5})
    one.tab("Explain")
    shows(one, {**scoring, "lmbda": 0.5})
    one.page.get_by_role("button", name="own settings").click()
    shows(one, scoring)


def test_a_link_to_an_explained_text_has_the_settings_for_scoring(visit, page, memory):
    scoring = values_of(memory, scores=True)
    one = visit(url=f"{page}/?explain=When+error+code+E42+appears,+open+it.&k=4")
    one.fresh("#explained", ".kl-foot span, .kl-notice")
    shows(one, {**scoring, "k": 4})
    assert one.page.locator("#explained .kl-stale").count() == 0


def test_no_control_shows_what_trust_chose_and_the_tour_has_it_written_anew(visit, page):
    one = visit(url=page)
    one.write(TEXTS[1][:30])
    number(one, "lmbda").fill("0.2")
    number(one, "lmbda").press("Tab")
    expect(one.page.locator("#answers .kl-stale")).to_contain_text("trust chose where")
    one.page.locator("#open-tour").click()
    tour = one.page.get_by_role("dialog", name="A tour of the settings")
    expect(tour.get_by_role("status")).to_contain_text("= 0.5 ×")
    one.page.keyboard.press("Escape")
    expect(tour).to_have_count(0)
