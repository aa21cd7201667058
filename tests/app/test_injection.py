"""Markup in files, their names and titles, in questions, texts and answers. None runs."""

import copy
import html
import json
import re

import office_files as office
import pytest

from app.chatting import OPEN_ALL, Chat
from app.conftest import expect, serving
from app.payloads import PAYLOADS
from knn_logits import Asking, Document, build_datastore
from knn_logits.ask.ranking import Ranking
from knn_logits.hosting import Limits
from knn_logits_app.library import Library

NAMED = "<img src=x onerror=window.pwned=1>"
ADDRESSES = [
    "javascript:window.pwned=1",
    "JavaScript://example.org/%0awindow.pwned=1",
    " javascript:window.pwned=1",
    "data:text/html,<script>opener.pwned=1</script>",
    "https://[",
]
# A few are enough for `make test`; each takes a second. A visitor may upload 20 files.
EACH = [
    pytest.param(PAYLOADS[::4], id="a few"),
    pytest.param(PAYLOADS[:20], id="most", marks=pytest.mark.soak),
    pytest.param(PAYLOADS[20:], id="others", marks=pytest.mark.soak),
]
# What a hostile text could become: an element, an attribute that runs, or a link that does.
BECAME = """() => {
  const within = [...document.querySelectorAll(
    ':is(#chat, #answers, #explained, .kl-drawer-out, #side details) *')];
  const elements = 'script, img, iframe, svg, math, object, embed, video, audio, source, form, '
    + 'style, link, base, meta, marquee, input, select, textarea';
  const strange = (one) => one.matches(elements)
    || [...one.attributes].some(({ name }) => name.startsWith('on') || name === 'srcdoc')
    || (one.matches('a') && !['http:', 'https:'].includes(one.protocol));
  return within.filter(strange).map((one) => one.outerHTML);
}"""
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module", autouse=True)
def near():
    """Lets the passage with the word of the question answer it, and no other."""
    find = Asking.find

    def with_the_word(self, query, *given):
        word = re.search(r"quarzine\d+ ", query)[0]
        return [row for row in find(self, query, *given) if word in row.passage.text]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Asking, "find", with_the_word)
        patch.setattr(Ranking, "margin", staticmethod(lambda found: 1.0))
        yield


@pytest.fixture(scope="module")
def url(model, tokenizer, tmp_path_factory):
    """The page of a model and a datastore with markup in all their names."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}Answer:"
    signs = [
        Document(f"The quarzine{number} reads {payload} today.", payload, title=payload, uri=uri)
        for number, (payload, uri) in enumerate(zip(PAYLOADS, ADDRESSES * 5, strict=True))
    ]
    store = build_datastore(
        model, own, signs, tmp_path_factory.mktemp("chat") / NAMED, calibrate=False
    )
    library = Library.of(NAMED, model, own, [store])
    with serving(library, limits=Limits(400, 24, seconds=600)) as (address, _):
        yield address


@pytest.fixture
def chat(visit):
    return Chat(visit())


def is_text(page):
    """Nothing ran, and nothing on the page could, also if it was touched."""
    page.evaluate(FRAMES)
    assert page.evaluate("window.pwned") is None
    assert page.evaluate(BECAME) == []


def files_of(folder, payloads):
    """A file for each payload, which has it in its text, title, headings and links, by turns."""
    paths = []
    for number, payload in enumerate(payloads):
        said, safe = f"The quarzine{number} reads {payload} today.", html.escape(payload)
        kind = number % 5
        if kind == 0:
            path = folder / f"{number} <svg onload=window.pwned=1>.md"
            link = "[x](javascript:window.pwned=1) <a href='javascript:window.pwned=1'>y</a>\n"
            path.write_text(f"---\ntitle: {payload}\n---\n# {payload}\n\n{said}\n\n{link}")
        elif kind == 1:
            path = folder / f"{number}.html"
            head = f"<title>{safe}</title><script>window.pwned=1</script>"
            body = f"<h1>{safe}</h1><p>{html.escape(said)}</p><a href='javascript:pwned=1'>x</a>"
            path.write_text(f"<!doctype html><html><head>{head}</head><body>{body}{payload}")
        elif kind == 2:
            path = folder / f"{number} &lt;script&gt;.docx"
            body = office.paragraph(safe, "berschrift1") + office.paragraph(html.escape(said))
            office.docx(path, body)
        elif kind == 3:
            path = folder / f"{number} 'onfocus='window.pwned=1' autofocus='.jsonl"
            row = {"text": said, "title": payload, "id": payload}
            row["uri"] = ADDRESSES[number % len(ADDRESSES)]
            path.write_text(json.dumps(row) + "\n")
        else:
            path = folder / f"{number} javascript:window.pwned=1.txt"
            path.write_text(said)
        paths.append(path)
    return paths


@pytest.mark.parametrize("payloads", EACH)
def test_files_with_markup_in_names_titles_headings_and_text_are_text(chat, tmp_path, payloads):
    page = chat.page
    chat.visit.attach(*files_of(tmp_path, payloads))
    expect(page.locator("#chat .kl-divider")).to_contain_text(f"{len(payloads)} documents")
    for number in range(len(payloads)):
        reply = chat.ask(f"What does the quarzine{number} read?")
        expect(reply.locator(".kl-quoted")).to_be_visible()
        page.evaluate(OPEN_ALL)
        passage = reply.locator("details blockquote")
        expect(passage).to_contain_text(f"The quarzine{number} reads")
        reply.get_by_role("button", name="Read the document").first.click()
        drawer = page.get_by_role("dialog")
        expect(drawer).to_contain_text(f"quarzine{number}")
        is_text(page)
        page.keyboard.press("Escape")
        expect(drawer).to_have_count(0)


@pytest.mark.parametrize("payloads", EACH)
def test_questions_texts_and_names_with_markup_are_text_also_after_a_reload(chat, payloads):
    one, page = chat.visit, chat.page
    for payload in payloads:
        place = PAYLOADS.index(payload)
        reply = chat.ask(f"What does the quarzine{place} read? {payload}")
        expect(reply.locator("summary b").first).to_contain_text(payload)
        page.evaluate(OPEN_ALL)
        assert reply.get_by_role("link", name="Open the original").count() == 0
        is_text(page)
    one.open()
    expect(chat.log.locator("> li")).to_have_count(len(payloads))
    expect(chat.log).to_contain_text(payloads[0])
    for payload in payloads:
        text = f"The quarzine{PAYLOADS.index(payload)} reads {payload} today."
        one.tab("Explain")
        page.locator("#explain-text textarea").fill(text)
        one.mark("#explained")
        page.locator("#explain").click()
        one.fresh("#explained", ".kl-foot span, .kl-error")
        word = page.locator("#explained .kl-w[role=button]", has_text="today").first
        if word.get_attribute("aria-expanded") != "true":
            word.click()
        expect(page.locator("#explained .kl-docs")).to_contain_text(payload)
        is_text(page)
        one.tab("Generate")
        one.write(text[:60])
        is_text(page)
    page.locator("#side summary").click()
    expect(page.locator("#side details")).to_contain_text(NAMED)
    is_text(page)
