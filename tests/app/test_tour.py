"""The tour of λ, τ and k, the cards beside words and documents, and targets for fingers."""

import re

from app.conftest import expect

WORD = "#answers .kl-side-knn .kl-changed[role=button]"


def number(page, name):
    return page.locator(f"#{name} input[type=number]")


def test_the_settings_are_understood_by_moving_them_and_stand_as_before_at_the_end(visit):
    page = visit().page
    before = [number(page, name).input_value() for name in ("lmbda", "temperature", "k")]
    asked = []
    page.on("request", lambda one: "queue/join" in one.url and asked.append(one.url))
    page.locator("#open-tour").click()
    tour = page.get_by_role("dialog", name="A tour of the settings")
    expect(tour.locator("table")).to_be_visible()
    slider, effect = tour.get_by_role("slider"), tour.get_by_role("status")
    expect(slider).to_be_focused()
    slider.fill("0")
    expect(number(page, "lmbda")).to_have_value("0")
    expect(effect).to_contain_text(re.compile(r"= 0 × .* \+ 1 × "))
    expect(page.locator("#answers .kl-headline")).to_contain_text("With these settings")
    slider.fill("1")
    expect(effect).to_contain_text(re.compile(r"= 1 × .* \+ 0 × "))
    tour.get_by_role("button", name="Next").click()
    expect(tour).to_contain_text("exp(−distance / τ)")
    # With a large τ all neighbors count the same, and with a small one the nearest decides.
    weights = tour.locator("td:last-child")
    slider.fill("1")
    expect(weights.nth(1)).not_to_have_text("<.001")
    slider.fill("0")
    expect(weights.first).to_have_text("1.000")
    tour.get_by_role("button", name="Next").click()
    slider.fill("0")
    expect(effect).to_contain_text("by 1 neighbor.")
    expect(weights).to_have_count(1)
    tour.get_by_role("button", name="End the tour").last.click()
    expect(tour).to_have_count(0)
    expect(page.locator("#answers .kl-stale")).to_have_count(0)
    assert [number(page, name).input_value() for name in ("lmbda", "temperature", "k")] == before
    assert asked == []


def test_a_card_says_where_a_word_and_a_document_come_from(visit):
    page = visit().page
    card = page.locator(".kl-over")
    page.locator(WORD).first.hover()
    expect(card).to_contain_text("Error E529 (Kenmouth lathe)")
    expect(card.locator("mark")).to_contain_text("adjust the front hose")
    expect(card).to_contain_text("brought by the memory")
    page.keyboard.press("Escape")
    expect(card).to_have_count(0)
    page.locator("#answers [data-document]").first.hover()
    expect(card).to_contain_text("Click to read the document")
    expect(card.locator("mark")).to_contain_text("adjust")
    page.mouse.move(1, 1)
    expect(card).to_have_count(0)
    page.locator(WORD).first.focus()
    page.keyboard.press("ArrowRight")
    expect(card).to_be_visible()
    page.keyboard.press("Enter")
    expect(card).to_have_count(0)


def test_what_is_touched_on_a_phone_is_large_enough(visit):
    one = visit(390)
    page = one.page
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(WORD).first.click()
    expect(page.locator("#answers .kl-panel")).to_be_visible()
    small = page.evaluate(
        "[...document.querySelectorAll('#answers :is(button, summary, a)')]"
        ".filter((one) => one.checkVisibility({ visibilityProperty: true }))"
        ".map((one) => [one.textContent, one.getBoundingClientRect()])"
        ".filter(([, box]) => box.width < 24 || box.height < 24).map(([text]) => text)"
    )
    assert small == []
    page.get_by_role("button", name="Close the sources").click()
    missed = page.evaluate(
        "[...document.querySelectorAll('#answers .kl-w[role=button]')].flatMap((one) => {"
        "  const box = one.getBoundingClientRect();"
        "  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];"
        "  return [[0, -12], [0, 11]].filter(([right, down]) =>"
        "    document.elementFromPoint(x + right, y + down)?.closest('.kl-w') !== one)"
        "    .map(() => one.textContent); })"
    )
    assert missed == []
    # The tour is a sheet over the lower part, and leaves the answer in sight.
    page.locator("#open-tour").click()
    box = page.get_by_role("dialog", name="A tour of the settings").bounding_box()
    assert (box["x"], box["width"], box["y"] + box["height"]) == (0, 390, 844)
    expect(page.locator("#answers .kl-side-knn h2")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
