"""The page of a small trained model, and a browser, which all tests of the page share."""

import contextlib
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import missing
import pytest

ROOT = Path(__file__).parents[2]
# A model of 2.3 million parameters that answers from two invented texts, which it never saw.
TINY = ROOT / "tests" / "tiny_model"
# A checkout that is not installed needs these paths.
for folder in (ROOT, ROOT / "app"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

# The seconds until a test stops waiting for a page. An answer ends the wait at once.
PATIENCE = 180

# They ask for facts of the texts in other words.
EXAMPLES = (
    "What helps against E529 is this:",
    "Travellers thank Bishop Korrin for",
    "The fault that raises E976 is called",
    "Question: When did Narwold gain its freedom? Answer:",
    "The right position of K-5750 is",
)
ATTACH = "[data-testid=Attach-upload-button]"


# Whoever runs other tests only need not import gradio, which takes seconds.
if find_spec("gradio") is None:
    pytest.skip("the page needs gradio: pip install 'knn-logits[app]'", allow_module_level=True)


@pytest.fixture(scope="package")
def library(tmp_path_factory):
    """The small model with a datastore of each text, of which the page chooses the first."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from knn_logits import IndexConfig, build_datastore, read_corpus
    from knn_logits_app.library import Library

    class OneChosen(Library):
        @property
        def chosen(self):
            return super().chosen[:1]

    model = AutoModelForCausalLM.from_pretrained(TINY).eval()
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    folder = tmp_path_factory.mktemp("tiny")
    stores = [
        build_datastore(
            model,
            tokenizer,
            read_corpus([str(TINY / f"{name}.jsonl")]),
            folder / name,
            index=IndexConfig("exact", "cosine"),
            k=1024,
            lmbda=0.8,
            temperature=0.03,
            license="Apache-2.0",
        )
        for name in ("manual", "chronicle")
    ]
    return OneChosen.of("small", model, tokenizer, stores, EXAMPLES)


@pytest.fixture(scope="package")
def session(library):
    """The small model without a server."""
    from knn_logits.hosting import Limits
    from knn_logits_app.session import Session

    return Session(library, Limits(prompt_tokens=200, new_tokens=128, seconds=600))


@contextlib.contextmanager
def serving(library, **settings):
    """Runs the page, and gives its address and its models and visitors."""
    from knn_logits_app.server import launch

    page, server = launch(library, block=False, **settings)
    yield page.local_url.rstrip("/"), server
    server.visitors.close()
    page.close(verbose=False)


@pytest.fixture(scope="package")
def served(library):
    """The small model's page."""
    with serving(library) as found:
        yield found


@pytest.fixture(scope="package")
def url(served):
    """The address of the page."""
    return served[0]


@pytest.fixture(scope="module")
def client(url):
    """A plain HTTP client of the page."""
    import httpx

    with httpx.Client(base_url=url, timeout=PATIENCE) as found:
        yield found


@pytest.fixture(scope="package")
def chromium():
    """A browser."""
    with missing.browser() as browser:
        yield browser


def eventually(condition):
    """Waits for at most `PATIENCE` seconds until something holds that no page shows."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextlib.contextmanager
def stop_heard(server, monkeypatch):
    """Waits at the end until the server has handled a stop, which its queue only passes on."""
    stop, heard = server.visitors.stop, threading.Event()
    monkeypatch.setattr(server.visitors, "stop", lambda *given: (stop(*given), heard.set()))
    yield
    assert heard.wait(PATIENCE)


def expect(what):
    """Returns an assertion of Playwright, which waits for at most `PATIENCE` seconds."""
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE * 1000)
    return expect(what)


class Visit:
    """A visit to the page, with the errors and foreign requests that were seen on it."""

    def __init__(self, page, url):
        self.page = page
        self.problems = []
        self.left = []
        self.asked_to_leave = False
        self._heard = {
            "console": lambda one: one.type == "error" and self._on_error(one.text),
            "pageerror": lambda error: self._on_error(str(error)),
            "dialog": self._on_dialog,
            "request": self._on_request,
        }
        for event, listener in self._heard.items():
            page.on(event, listener)
        self.open(url)

    def open(self, url=None):
        """Opens an address, or loads the page again, and waits until the page is complete."""
        # This ends what gradio's scripts of the page before wait for, which they report.
        self.leaving = True
        if url is None:
            self.page.reload()
        else:
            self.page.goto(url)
        # The page sets this attribute when everything on it is mounted.
        self.page.wait_for_selector("html[data-ready]")
        self.leaving = False

    def end(self):
        """Leaves the page as the next visit needs it."""
        from playwright.sync_api import Error

        self._listen_no_more()
        self.page.unroute_all(behavior="ignoreErrors")
        if not self.page.url.startswith("about:"):
            # It keeps the conversation of the chat, also with a frame that comes this late.
            self.page.evaluate("addEventListener('pagehide', () => sessionStorage.clear())")
        try:
            self.page.goto("about:blank")
        except Error:  # the page itself was going back, as after a panel is closed
            self.page.goto("about:blank")

    def check(self):
        """Nothing went wrong up to now, and the page asked no other server for anything."""
        assert self.problems == []
        assert self.left == []
        if not self.page.is_closed():
            self._listen_no_more()

    def _listen_no_more(self):
        for event, listener in self._heard.items():
            self.page.remove_listener(event, listener)
        self._heard = {}

    def _on_dialog(self, dialog):
        # The browser asks before documents of a visitor are lost.
        if dialog.type == "beforeunload":
            self.asked_to_leave = True
            dialog.accept()
        else:
            self.problems.append("dialog")
            dialog.dismiss()

    def _on_error(self, text):
        ended = ("AbortError", "Unexpected error Connection errored out")
        if not (self.leaving and text.startswith(ended)):
            self.problems.append(text)

    def _on_request(self, request):
        if not request.url.startswith(("http://127.0.0.1", "http://localhost", "data:", "blob:")):
            self.left.append(request.url)

    def tab(self, name):
        """Opens a tab."""
        self.page.get_by_role("tab", name=name, exact=True).click()

    def write(self, prompt=None):
        """Presses Write, and waits for the answer."""
        if prompt is not None:
            self.page.locator("#prompt textarea").fill(prompt)
        self.page.evaluate("document.querySelector('#answers .kl-out').dataset.old = '1'")
        self.mark("#answers")
        self.page.locator("#write").click()
        self.fresh("#answers", ".kl-foot span, .kl-notice")

    def mark(self, place):
        """Removes the shown answer, so that a new one can be recognized."""
        self.page.evaluate(
            "(place) => document.querySelectorAll(place + ' .kl-out > *').forEach("
            "(one) => one.remove())",
            place,
        )

    def fresh(self, place, what):
        """Waits until a place shows a finished answer."""
        self.page.wait_for_selector(f"{place} :is({what})")
        self.page.wait_for_function(
            "(place) => !document.querySelector(place + ' .kl-caret') && "
            "!/looking the passages up/.test(document.querySelector(place).textContent)",
            arg=place,
        )

    def attach(self, *files):
        """Attaches files in the chat, and waits until they are asked or refused."""
        self.tab("Chat")
        dividers = self.page.locator("#chat .kl-divider")
        before = dividers.count()
        self.page.locator(ATTACH).set_input_files(files)
        ended = dividers.nth(before).or_(self.page.locator("#chat-line-wrong"))
        expect(ended.first).to_be_visible()


class Windows:
    """The browser's windows, of which one is lent to visit after visit.

    A window that opened the page before opens it again at a third of the browser's work, since a
    new one compiles all scripts anew.
    """

    def __init__(self, browser):
        self.browser = browser
        self.free = []

    def lend(self, width, scheme):
        window = self.free.pop() if self.free else self.new()
        window.set_viewport_size({"width": width, "height": 900})
        window.emulate_media(color_scheme=scheme)
        return window

    def new(self, script=None):
        window = self.browser.new_context().new_page()
        window.set_default_timeout(PATIENCE * 1000)
        if script:
            window.add_init_script(script)
        return window

    def give_back(self, visit):
        if not visit.page.is_closed():
            visit.end()
            self.free.append(visit.page)


@pytest.fixture(scope="package")
def windows(chromium):
    """The browser's windows, which visits share."""
    return Windows(chromium)


@pytest.fixture(scope="module")
def drawing(chromium):
    """Gives a function that draws the JSON of an answer on an empty page."""
    from knn_logits_app import views

    context = chromium.new_context(viewport={"width": 1000, "height": 800})
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)

    def draw(frame):
        page.set_content(views.alone(frame))
        page.wait_for_selector("#answer .kl-grid")
        return page

    yield draw
    context.close()


@pytest.fixture
def visit(windows, url):
    """Gives a function that opens the page, which a test may call several times.

    At the end no page may have reported an error, or asked another server for anything.
    """
    opened = []

    def new(width=1280, scheme="light", url=url, script=None):
        window = windows.new(script) if script else windows.lend(width, scheme)
        opened.append((Visit(window, url), script))
        return opened[-1][0]

    yield new
    for one, script in opened:
        # What a script adds to a window stays, so no other visit gets such a window.
        if script:
            one.page.context.close()
        else:
            windows.give_back(one)
    for one, _ in opened:
        one.check()


@pytest.fixture
def one(visit):
    """A visit on a wide screen."""
    return visit()
