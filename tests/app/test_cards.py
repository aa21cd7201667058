"""The cards beside words and documents, and targets for fingers."""

from app.conftest import expect

WORD = "#answers .kl-side-knn .kl-changed[role=button]"


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
