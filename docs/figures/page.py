"""Takes pictures of the page with the documentation of SQLite: `docs/chat.png`, the first screen in
`docs/app.png` and `docs/phone.png`, its answer in `docs/generate.png`, and the film `docs/app.gif`.

python docs/figures/page.py [--url http://127.0.0.1:7860]

Without an address it starts the page itself. It needs chromium (or KNN_LOGITS_CHROMIUM) and the
packages of `requirements-dev.txt`.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 1280, 860
PHONE = (390, 844)
# The film's width in pixels, and its colours.
_FILM, _COLOURS = 760, 64
# The median cut, Pillow's default, leaves no colour for the few words that are marked.
_METHOD = Image.Quantize.MAXCOVERAGE
# A sentence of the documentation with a number that is not its own.
_WRONG = "The intent of the developers is to support SQLite through the year 2040."


@contextmanager
def served(url: str | None = None) -> Iterator[str]:
    """The address of the page with SQLite's documentation."""
    if url is not None:
        yield url
        return
    for folder in (ROOT / "app", ROOT):
        sys.path.insert(0, str(folder))
    import app
    from knn_logits_app.server import launch

    page, server = launch(app.sqlite_library(), block=False)
    try:
        yield page.local_url
    finally:
        server.visitors.close()
        page.close(verbose=False)


def still(seen: Any) -> Image.Image:
    """What is seen of a page or an element now, in a few colours, which makes a small file."""
    image = Image.open(io.BytesIO(seen.screenshot())).convert("RGB")
    return image.quantize(256, dither=Image.Dither.NONE)


class Film:
    """Frames of a film.

    Args:
        page: The browser's page.
    """

    def __init__(self, page: Any) -> None:
        self._page = page
        self._frames: list[tuple[Image.Image, int]] = []

    def take(self, milliseconds: int) -> None:
        """Adds what is seen now, shown for so long."""
        image = Image.open(io.BytesIO(self._page.screenshot())).convert("RGB")
        height = round(image.height * _FILM / image.width)
        small = image.resize((_FILM, height), Image.Resampling.LANCZOS)
        self._frames.append(
            (small.quantize(_COLOURS, _METHOD, dither=Image.Dither.NONE), milliseconds)
        )

    def save(self, path: Path) -> None:
        """Writes the frames as a GIF."""
        first, *others = [frame for frame, _ in self._frames]
        first.save(
            path,
            save_all=True,
            append_images=others,
            duration=[duration for _, duration in self._frames],
            loop=0,
            optimize=True,
        )


def film(page: Any, path: Path) -> None:
    """What a visitor does: a question and its source, a word and its document, a wrong fact."""
    frames = Film(page)
    ask(page, "What is the maximum size of an SQLite database?")
    frames.take(3000)
    page.locator(".kl-reply summary").first.click()
    page.wait_for_selector(".kl-reply details[open]")
    frames.take(3000)
    page.get_by_role("tab", name="Generate").click()
    page.evaluate("window.scrollTo(0, 0)")
    frames.take(2500)
    page.locator("#answers .kl-open").first.click()
    page.wait_for_selector(".kl-drawer mark")
    frames.take(3000)
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Explain").click()
    page.locator("#explain-text textarea").fill(_WRONG)
    page.locator("#explain").click()
    page.wait_for_selector("#explained .kl-against")
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(1000)  # gradio fades an answer in
    frames.take(4000)
    frames.save(path)


def ask(page: Any, question: str) -> None:
    """Asks a question in the chat, and waits for its answer."""
    page.get_by_placeholder("Ask a question").fill(question)
    page.keyboard.press("Enter")
    page.locator(".kl-log li").last.get_by_text(question, exact=True).wait_for()
    page.wait_for_selector(".kl-log[aria-busy=false] li:last-child .kl-again")


def chat(page: Any, path: Path) -> None:
    """A question that a document answers, with its passage, and one that none does."""
    ask(page, "What is the maximum size of an SQLite database?")
    ask(page, "What is the capital of France?")
    page.locator(".kl-reply summary").first.click()
    page.wait_for_selector(".kl-reply details[open]")
    page.evaluate("window.scrollTo(0, 0)")
    still(page).save(path, optimize=True)


def main() -> None:
    """Takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="of such a page that runs already")
    options = parser.parse_args()
    chromium = os.environ.get("KNN_LOGITS_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright, served(options.url) as url:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )

        def opened(width: int = WIDTH, height: int = HEIGHT) -> Any:
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="light"
            )
            page.set_default_timeout(300_000)
            page.goto(url)
            page.wait_for_selector("html[data-ready]")
            return page

        chat(opened(), ROOT / "docs" / "chat.png")
        page = opened()
        page.locator("#example .kl-w[role=button]").first.click()
        page.locator("#example .kl-panel").get_by_text("281", exact=True).first.wait_for()
        still(page).save(ROOT / "docs" / "app.png", optimize=True)
        still(page.locator("#example")).save(ROOT / "docs" / "generate.png", optimize=True)
        page = opened(*PHONE)
        page.wait_for_selector("#example .kl-text")
        still(page).save(ROOT / "docs" / "phone.png", optimize=True)
        film(opened(), ROOT / "docs" / "app.gif")


if __name__ == "__main__":
    main()
