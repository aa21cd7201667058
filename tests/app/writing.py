"""The form that writes and its answers, which tests read and drive."""


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
    page.get_by_label("fixed").check()
    number = page.locator(f"#{name} input[type=number]")
    number.fill(str(value))
    number.press("Tab")


def explain(one, text):
    one.tab("Explain")
    one.page.locator("#explain-text textarea").fill(text)
    one.mark("#explained")
    one.page.locator("#explain").click()
    one.fresh("#explained", ".kl-foot span")
