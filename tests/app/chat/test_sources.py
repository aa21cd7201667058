"""The passages behind the answers of the chat, and its datastores."""

from conftest import TEXTS
from office_files import pdf

from app.chatting import GENERAL, MISSING, QUEEN, Chat
from app.conftest import expect


def test_the_first_tab_is_the_chat_and_a_quotation_opens_its_passage_by_keys(chat):
    page = chat.page
    first = page.get_by_role("tab").first
    expect(first).to_have_text("Chat")
    expect(first).to_have_attribute("aria-selected", "true")
    expect(page.locator("#chat .kl-start")).to_contain_text("Ask about the documents")
    # Questions are offered while documents are chosen that they are about.
    offered = page.locator("#chat .kl-start button")
    expect(offered).to_have_text([QUEEN])
    names = page.locator("#stores input").all()
    for box in names:
        box.uncheck()
    expect(offered).to_have_count(0)
    for box in names:
        box.check()
    expect(offered).to_have_count(1)
    # The first screen shows an answer whose words can be clicked, until the first question.
    example = page.locator("#example")
    word = example.locator(".kl-side-knn .kl-w[role=button]").first
    if example.locator(".kl-panel").count() == 0:
        word.click()
    expect(example.locator(".kl-panel .kl-sources").first).to_be_visible()
    example.locator(".kl-open").first.click()
    expect(page.get_by_role("dialog").locator("mark").first).to_be_visible()
    page.keyboard.press("Escape")
    reply = chat.ask(QUEEN)
    expect(example).to_be_hidden()
    expect(reply.locator("blockquote.kl-quoted")).to_have_text(f"“{TEXTS[2]}”")
    expect(page.locator("#chat .kl-start")).to_have_text("")
    expect(chat.box).to_have_value("")
    source = reply.locator("details")
    expect(source).to_have_count(1)
    expect(source.locator("mark")).to_be_hidden()
    source.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(source.locator("mark")).to_have_text(TEXTS[2])
    expect(source.locator("mark")).to_be_in_viewport()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    expect(drawer.locator("mark")).to_have_text(TEXTS[2])
    # Tab reaches nothing behind the drawer, and Escape closes it.
    for key in ["Tab"] * 3 + ["Shift+Tab"] * 4:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.matches('body, dialog *')")
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    expect(source.get_by_role("button", name="Read the document")).to_be_focused()
    # The settings of the mixture have no part in an answer.
    expect(page.locator("#strength")).to_be_hidden()
    chat.visit.tab("Generate")
    expect(page.locator("#strength")).to_be_visible()


def test_the_form_does_not_hide_the_end_of_a_passage_that_is_opened(chat):
    page = chat.page
    page.set_viewport_size({"width": 1280, "height": 560})
    reply = chat.ask(MISSING)
    source = reply.locator("details").last
    source.locator("summary").click()
    end = source.get_by_role("button", name="Read the document")
    expect(end).to_be_in_viewport()
    form = page.locator("#chat-form").bounding_box()["y"]
    page.wait_for_function(
        "(form) => [...document.querySelectorAll('#chat details')].at(-1)"
        ".getBoundingClientRect().bottom <= form",
        arg=form,
    )


def test_a_link_to_an_answer_asks_its_question_after_the_one_before(chat, visit):
    for question in (GENERAL, QUEEN, "And when was it?"):
        reply = chat.ask(question)
    other = Chat(visit(url=reply.locator(".kl-again").get_attribute("href")))
    expect(other.log.locator("> li")).to_have_count(2)
    expect(other.turn(0).locator(".kl-question")).to_have_text(QUEEN)
    expect(other.turn().locator("blockquote.kl-perhaps")).to_have_text(f"“{TEXTS[2]}”")
    # Another kind of link continues a text, in its own tab.
    address = other.page.url.partition("?")[0]
    other.visit.open(f"{address}?q=The+ferry&store=signs")
    expect(other.page.locator("#answers .kl-side-knn .kl-prompt")).to_have_text("The ferry")
    generate = other.page.get_by_role("tab", name="Generate")
    expect(generate).to_have_attribute("aria-selected", "true")


def test_each_kind_of_answer_says_what_it_is_from(chat, monkeypatch):
    """One that no document has, one that nothing comes near, and one in the model's own words."""
    reply = chat.ask(MISSING)
    expect(reply.locator(".kl-alone")).to_have_text("No passage clearly answers this.")
    expect(reply.locator(".kl-from").first).to_have_text("Nearest passage, perhaps an answer:")
    # It is grey, and its alternatives stand below. Each shows its sentence once, whole.
    soft = "(one) => getComputedStyle(one).color"
    grey = reply.locator(".kl-from").first.evaluate(soft)
    assert reply.locator(".kl-perhaps").evaluate(soft) == grey
    border = "(one) => getComputedStyle(one).borderLeftColor"
    edge = reply.locator("details").first.evaluate(border)
    assert reply.locator(".kl-perhaps").evaluate(border) == edge
    expect(reply.locator(".kl-from").nth(1)).to_have_text("Alternatives:")
    sources = reply.locator("details").all()
    marked = [source.locator("mark").text_content().strip() for source in sources]
    places = [reply.locator(".kl-perhaps"), *(one.locator("summary") for one in sources[1:])]
    assert len(places) >= 2
    assert max(map(len, marked)) > 80
    for place, sentence in zip(places, marked, strict=True):
        assert sentence in place.inner_text()
        assert reply.inner_text().count(sentence) == 1
    reply.locator("details").first.locator("summary").click()
    expect(reply.locator("details blockquote").first).to_contain_text("harbour")
    reply = chat.ask(GENERAL)
    expect(reply.locator(".kl-alone")).to_have_text("No passage clearly answers this.")
    expect(reply.locator("details")).to_have_count(0)
    monkeypatch.setattr("knn_logits.ask.asking.reads", lambda *_: True)
    reply = chat.ask(QUEEN)
    expect(reply.locator("blockquote.kl-said")).to_have_count(0)
    expect(reply.locator("p.kl-said")).to_be_visible()
    expect(reply.locator(".kl-from")).to_contain_text("Written by the model")
    reply.locator("summary").first.click()
    expect(reply.locator("details blockquote").first).to_contain_text(TEXTS[2])


def test_several_datastores_are_asked_as_one_and_a_source_links_to_its_page(chat):
    expect(chat.page.get_by_label("signs", exact=True)).to_be_checked()
    reply = chat.ask("When does the ferry leave Oldenport?")
    expect(reply.locator(".kl-quoted")).to_contain_text("The ferry leaves Oldenport at noon.")
    expect(reply.locator(".kl-store")).to_have_text("signs")
    reply.locator("summary").click()
    link = reply.get_by_role("link", name="Open the original in a new tab")
    expect(link).to_have_attribute("href", "https://example.org/ferry")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")


def test_a_source_in_a_pdf_of_ones_own_names_its_page(chat, tmp_path):
    file = tmp_path / "kiln.pdf"
    file.write_bytes(pdf("The kiln is old.", "The kiln of Harrow reaches 1280 degrees."))
    chat.visit.attach(file)
    reply = chat.ask("How many degrees does the kiln of Harrow reach?")
    expect(reply.locator("summary")).to_contain_text("kiln.pdf, page 2")
    reply.locator("summary").click()
    reply.get_by_role("button", name="Read the document").click()
    drawer = chat.page.get_by_role("dialog")
    expect(drawer.locator(".kl-places")).to_contain_text("page 2, place 1 of 1")
    chat.page.keyboard.press("Escape")
    # A click on the sentence leads there as well, but not who selects it from its first word on.
    expect(drawer).to_have_count(0)
    said, mouse = reply.locator(".kl-says"), chat.page.mouse
    box = said.bounding_box()
    mouse.move(box["x"] + 1, box["y"] + 8)
    mouse.down()
    mouse.move(box["x"] + 120, box["y"] + 8, steps=4)
    mouse.up()
    assert chat.page.evaluate("String(getSelection())").startswith("The kiln")
    expect(drawer).to_have_count(0)
    chat.page.evaluate("getSelection().removeAllRanges()")
    said.click()
    expect(drawer.locator("mark")).to_have_text("The kiln of Harrow reaches 1280 degrees.")
    chat.page.keyboard.press("Escape")
    expect(reply.locator("summary")).to_be_focused()
    # Nobody else could open an answer of one's own text.
    expect(reply.locator(".kl-again")).to_have_count(0)


def test_a_row_of_a_table_has_the_names_of_its_columns_and_is_marked_where_it_stands(
    chat, chat_page, tmp_path
):
    table = "| filter | color |\n|---|---|\n| HK-12 | grey |\n| HK-30 | green |\n"
    (tmp_path / "prices.md").write_text(table)
    chat.visit.attach(tmp_path / "prices.md")
    drawer = chat.page.get_by_role("dialog")
    named, row = "filter: HK-30; color: green", ["HK-30", "green"]
    reply = chat.ask("Which green queen founded the town of Oldenport?")
    expect(reply.locator(".kl-alone")).to_have_text("No passage clearly answers this.")
    expect(reply.locator(".kl-perhaps")).to_have_text(named)
    reply.locator("summary").click()
    expect(reply.locator("td > mark")).to_have_text(row)
    reply.get_by_role("button", name="Read the document").click()
    expect(drawer.locator("td > mark.kl-here")).to_have_text(row)
    expect(drawer.locator("th")).to_have_text(["filter", "color"])
    chat.page.keyboard.press("Escape")
    # That of an answer is opened by a click on the answer, too.
    reply = chat.ask("What is the color of filter HK-30?")
    expect(reply.locator(".kl-quoted")).to_have_text(named)
    expect(reply.locator(".kl-from").first).to_have_text("From the table in:")
    reply.locator(".kl-says").click()
    expect(drawer.locator("mark")).to_have_text(row)
    chat.page.keyboard.press("Escape")
    # What the server has lost cannot be opened, and says so each time.
    for session in list(chat_page[1].visitors.by_session):
        chat_page[1].visitors.forget(session)
    for _ in range(2):
        reply.locator(".kl-says").click()
        expect(drawer.locator(".kl-error")).to_contain_text("not available (any more)")
        chat.page.keyboard.press("Escape")
