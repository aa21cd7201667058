"""Journeys with documents of one's own, and with more than the limits allow."""

import re

from app.conftest import ATTACH, eventually, expect
from app.writing import open_word, slide, text_of
from knn_logits_app.your_text import SUFFIXES

FIRST_PROMPT = "What helps against E529 is this:"
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
    dividers, question = page.locator("#chat .kl-divider"), page.get_by_label("Your question")
    mine = page.get_by_label("light.md, book.txt", exact=True)

    def stop_a_build():
        page.locator(ATTACH).set_input_files(tmp_path / "long.txt")
        expect(page.locator("#chat")).to_contain_text("Memorizing word pieces")
        # A question waits in its box until the documents are in.
        question.fill("What burns?")
        page.keyboard.press("Enter")
        expect(page.locator("#chat-line-wrong")).to_contain_text("documents are being read")
        stop.click()
        expect(page.locator("#chat-line-wrong")).to_have_text("The build was stopped.")
        expect(question).to_have_value("What burns?")
        expect(stop).to_be_disabled()

    # A build is stopped at once.
    (tmp_path / "long.txt").write_text("The lamp burns rape oil every night. " * 10_000)
    stop_a_build()
    expect(mine).to_have_count(0)
    # Sliders that were moved for another text do not hold for this one.
    one.tab("Generate")
    slide(page, 0.02)
    (tmp_path / "light.md").write_text("# Light\n\nThe lighthouse of Orrin Bay was painted blue.")
    (tmp_path / "book.txt").write_text("Its keeper, Mara Tolliver, wrote into a red book.")
    one.attach(tmp_path / "light.md", tmp_path / "book.txt")
    expect(dividers).to_have_text("Now asking: light.md, book.txt (2 documents)")
    expect(mine).to_be_checked()
    expect(page.get_by_label("manual")).not_to_be_checked()
    expect(question).to_be_focused()
    question.fill("Which colour has the lighthouse of Orrin Bay?")
    page.keyboard.press("Enter")
    expect(page.locator("#chat .kl-reply")).to_contain_text("painted blue.")
    # A passage is not passed off as an answer, and is read out without its signs.
    question.fill("Why?")
    page.keyboard.press("Enter")
    around = "This is the passage around the last answer."
    expect(page.locator("#chat .kl-reply").last.locator(".kl-from").first).to_have_text(around)
    told = page.locator("#chat p.kl-sr[role=status]")
    expect(told).to_have_text(f"{around} Light The lighthouse of Orrin Bay was painted blue.")
    # Only the quoted sentence of the passage is marked.
    page.locator("#chat .kl-reply summary").first.click()
    drawer, read = page.get_by_role("dialog"), page.get_by_role("button", name="Read the document")
    painted = "The lighthouse of Orrin Bay was painted blue."
    read.click()
    expect(drawer.locator("mark")).to_have_text(painted)
    page.keyboard.press("Escape")
    one.tab("Generate")
    # The examples of texts are of other documents, and so is what was written.
    expect(page.locator(".kl-chips")).to_be_hidden()
    expect(page.locator("#prompt textarea")).to_have_value("")
    expect(page.locator("#explain-text textarea")).to_have_value("")
    expect(page.locator("#answers .kl-out")).to_be_hidden()
    one.write("")
    expect(page.locator("#answers .kl-error")).to_contain_text("empty")
    one.write("The lighthouse of Orrin Bay was")
    expect(page.get_by_label("automatic")).to_be_checked()
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
    # What is stopped later takes nothing away.
    stop_a_build()
    expect(mine).to_be_checked()
    # A file that is dropped is added as well.
    page.evaluate(DROP, ["seals.txt", "The keeper counts the seals on the first Sunday of May."])
    all_three = "light.md, book.txt, seals.txt"
    expect(dividers.last).to_have_text(f"Now asking: {all_three} (seals.txt added, 3 documents)")
    expect(page.get_by_label("seals.txt")).to_be_checked()
    expect(mine).to_have_count(0)
    expect(build).to_have_text("")
    # A new version takes the place of a file. What cannot be read keeps nothing out.
    (tmp_path / "light.md").write_text("# Light\n\nThe lighthouse was torn down.")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7\n")
    page.locator(ATTACH).set_input_files([tmp_path / "broken.pdf", tmp_path / "light.md"])
    expect(dividers.last).to_have_text(f"Now asking: {all_three} (light.md replaced, 3 documents)")
    expect(page.locator("#chat-line-wrong")).to_have_text(
        "Could not read broken.pdf (damaged; save it again)."
    )
    # The answers from before still open the text that they quote.
    read.click()
    expect(drawer.locator("mark")).to_have_text(painted)
    page.keyboard.press("Escape")
    # A question after a divider has a number of its own.
    question.fill("When does the keeper count the seals?")
    page.keyboard.press("Enter")
    expect(page.locator("#chat .kl-reply").last).to_contain_text("first Sunday of May.")
    # What is asked now is said before the next question, too.
    page.get_by_label("manual").check()
    expect(dividers.last).to_have_text(f"Now asking: {all_three}, manual")
    expect(dividers).to_have_count(3)
    page.get_by_label("manual").uncheck()
    expect(dividers).to_have_count(2)
    # They stay in use in a new chat, which says so.
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#chat .kl-reply")).to_have_count(0)
    expect(dividers).to_have_text(f"Now asking: {all_three} (light.md replaced, 3 documents)")
    expect(page.locator("#chat .kl-start")).to_have_text(re.compile("^Ask about the documents"))
    # A page that is loaded again has lost them, and the browser asks before.
    (folder,) = [one.folder for one in served[1].visitors.by_session.values() if one.folder]
    assert folder.exists()
    page.get_by_label("chronicle").check()
    one.open()
    assert one.asked_to_leave
    expect(page.locator("#chat .kl-divider")).to_have_count(0)
    lost = page.locator("#chat-line-wrong")
    expect(lost).to_contain_text("without your documents")
    expect(lost).to_be_in_viewport(ratio=1)
    eventually(lambda: not folder.exists())
    # What else was chosen stays so, also where it had been before.
    for _ in range(2):
        expect(page.get_by_label("chronicle")).to_be_checked()
        expect(page.get_by_label("manual")).not_to_be_checked()
        one.attach(tmp_path / "light.md")
        one.open()


def test_what_is_attached_is_named_in_full_and_detached(visit, served, tmp_path):
    one = visit(390)
    page, boxes = one.page, one.page.locator("#stores label")
    names = ["report_of_the_year_signed_final_version.txt", "minutes_of_the_meeting_in_march.txt"]
    for name in names:
        (tmp_path / name).write_text(f"The {name[:7]} is in the archive.")
    page.locator("#open-settings").click()
    page.get_by_label("chronicle").check()
    page.get_by_label("manual").uncheck()
    page.keyboard.press("Escape")
    one.attach(*(tmp_path / name for name in names))
    page.locator("#open-settings").click()
    expect(boxes.last).to_have_text(", ".join(names))
    assert boxes.last.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    page.keyboard.press("Escape")
    detach = page.get_by_role("button", name="Detach all")
    detach.click()
    expect(detach).to_be_hidden()
    expect(boxes).to_have_text(["manual", "chronicle"])
    # What was chosen before is chosen again.
    expect(page.get_by_label("chronicle")).to_be_checked()
    expect(page.get_by_label("manual")).not_to_be_checked()
    eventually(lambda: not any(one.folder for one in served[1].visitors.by_session.values()))
    # Nothing is lost by leaving now.
    one.open()
    assert not one.asked_to_leave


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
        (picture, "Could not read a.png (no text and no document: .txt, .md"),
        (large, "The files have 0.5 MB, but the limit is 0.4 MB together."),
    ):
        page.locator(ATTACH).set_input_files(file)
        expect(wrong).to_contain_text(line)
    assert asked == []
    (tmp_path / "d.txt").write_text("The kiln is old.")
    # What cannot be read keeps nothing out, and is named.
    one.attach(picture, tmp_path / "d.txt", empty)
    expect(page.locator("#chat .kl-divider")).to_have_text("Now asking: d.txt (1 document)")
    suffixes = ", ".join(SUFFIXES)
    expect(page.locator("#chat-line-wrong")).to_have_text(
        f"Could not read a.png (no text and no document: {suffixes}), b.txt (empty)."
    )
    # An old error does not stay beside a new one, nor after the next deed.
    page.locator(ATTACH).set_input_files(picture)
    expect(wrong).to_have_text(f"Could not read a.png (no text and no document: {suffixes}).")
    page.get_by_label("manual").check()
    expect(wrong).to_have_count(0)
    # What only the server knows is a line as well.
    (tmp_path / "e.jsonl").write_text('{"title": "no text"}\n')
    one.attach(tmp_path / "e.jsonl")
    expect(wrong).to_contain_text("Could not read e.jsonl (")
    page.get_by_label("Your question").fill("How old is the kiln?")
    page.keyboard.press("Enter")
    expect(wrong).to_have_count(0)
    # A browser cuts a text that is too long, and says nothing.
    one.tab("Generate")
    page.locator("#prompt textarea").fill("")
    page.locator("#prompt textarea").focus()
    page.keyboard.insert_text("word " * 5_000)
    expect(page.locator("#prompt-wrong")).to_contain_text("25,000 characters, and the limit is 20,")
    expect(page.locator("#prompt-wrong")).to_contain_text("This was not added")
    expect(page.locator("#prompt textarea")).to_have_value("")
    page.keyboard.insert_text("word")
    expect(page.locator("#prompt-wrong")).to_have_count(0)
    for tab, place, button, output, text, line in (
        ("Generate", "#prompt", "#write", "#answers", "word " * 600, "shorten it"),
        ("Explain", "#explain-text", "#explain", "#explained", "x", "too short"),
        ("Evaluate", "#evaluate-text", "#evaluate", "#evaluated", "", "empty"),
        ("Evaluate", "#evaluate-text", "#evaluate", "#evaluated", "x", "too short"),
    ):
        one.tab(tab)
        page.locator(f"{place} textarea").fill(text)
        page.locator(button).click()
        expect(page.locator(f"{output} .kl-error")).to_contain_text(line)
    # gradio would refuse this number by itself, and nobody would hear of it.
    one.tab("Generate")
    page.get_by_label("Set length and sampling").check()
    page.get_by_label("Seed").fill("-4")
    one.write(FIRST_PROMPT)
    expect(page.locator("#answers .kl-error")).to_contain_text("Seed: ")
    expect(page.locator("#write-stop")).to_be_disabled()
    # A refusal does not hold for other settings.
    page.get_by_label("chronicle").check()
    expect(page.locator("#answers .kl-error")).to_have_count(0)
    assert "Traceback" not in page.content()
