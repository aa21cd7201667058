"""Measures in a browser how fast the page shows words and follows the slider, and how large it is.

python benchmarks/app_page.py MODEL STORE --rounds 5 --steps 40

The benchmark needs chromium and Playwright (requirements-dev.txt). It writes an answer of 256
tokens several times, and then moves the slider of λ over that answer and over an explained text of
100 words. A move is timed from the event of the slider to the first frame after the words have
changed. Each round compares the answer with kNN to the one without.
"""

import argparse
import os
import shutil
import statistics
from pathlib import Path

from browsing import start, write_whole_texts
from common import record
from playwright.sync_api import sync_playwright

# This JavaScript notes when the click came, and when an answer had its first word.
WATCH = """() => {
  window.first_word = { knn: null, lm: null };
  let clicked = null;
  document.querySelector('#write').addEventListener('click', () => {
    clicked = performance.now();
    window.first_word = { knn: null, lm: null };
  });
  const look = () => {
    for (const side of ['knn', 'lm']) {
      const text = document.querySelector(`#answers .kl-side-${side} .kl-text`);
      const prompt = text?.querySelector('.kl-prompt');
      if (clicked === null || !text || window.first_word[side] !== null) continue;
      // The old answer still stands there until the new one is drawn.
      if (document.querySelector('#answers .kl-out').dataset.done === 'old') continue;
      if (text.textContent.trim().length > prompt.textContent.length + 1)
        window.first_word[side] = performance.now() - clicked;
    }
  };
  new MutationObserver(look).observe(document.querySelector('#answers'),
    { subtree: true, childList: true, characterData: true });
}"""
# This JavaScript moves the slider once, and waits for the frame after the words have changed.
SLIDE = """([place, value]) => new Promise((done) => {
  const slider = document.querySelector('#lmbda input[type=range]');
  const note = document.querySelector(`${place} .kl-notes`);
  const started = performance.now();
  const observer = new MutationObserver(() => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - started)));
  });
  observer.observe(note, { subtree: true, childList: true, characterData: true });
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(slider, value);
  slider.dispatchEvent(new Event('input', { bubbles: true }));
})"""


def write(page, received):
    """Writes an answer, and returns its measures."""
    page.evaluate("document.querySelector('#answers .kl-out').dataset.done = 'old'")
    before = sum(received)
    page.locator("#write").click()
    page.wait_for_selector("#answers .kl-out[data-done=true] .kl-save", timeout=180_000)
    html = page.evaluate("new Blob([document.querySelector('#answers').innerHTML]).size")
    first = page.evaluate("window.first_word")
    tokens = int(page.locator("#answers .kl-side-knn .kl-foot span").first.inner_text().split()[0])
    words = page.locator("#answers .kl-w[role=button]").count()
    return {
        "tokens": tokens,
        "words": words,
        "first_word_ms": first["knn"],
        "first_word_without_knn_ms": first["lm"],
        "html_bytes": html,
        "received_bytes": sum(received) - before,
    }


def cpu_ms(devtools):
    """Returns the CPU milliseconds of the main thread. Other processes hardly affect them."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return 1000 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")


def slide(page, devtools, place, steps):
    """Moves the slider of λ, and returns the milliseconds of the moves and the requests made."""
    asked = []

    def note(request):
        asked.append(request.url)

    page.on("request", note)
    values = [round(0.05 + 0.9 * step / steps, 2) for step in range(steps)]
    # The first moves compute what the others keep.
    for value in (0.5, 0.6):
        page.evaluate(SLIDE, [place, value])
    before = cpu_ms(devtools)
    moves = [page.evaluate(SLIDE, [place, value]) for value in values]
    used = (cpu_ms(devtools) - before) / len(moves)
    page.remove_listener("request", note)
    words = page.locator(f"{place} .kl-w[role=button]").count()
    return {
        "words": words,
        "cpu_ms_of_a_move": round(used, 1),
        "median_ms": statistics.median(moves),
        "fastest_ms": min(moves),
        "slowest_ms": max(moves),
        "requests": len(asked),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--words", type=int, default=100, help="words of the explained text")
    parser.add_argument("--port", type=int, default=7897)
    args = parser.parse_args()
    server, _ = start(["-m", "knn_logits", "app", args.model, args.store], args.port)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            received = []
            devtools = page.context.new_cdp_session(page)
            devtools.send("Network.enable")
            devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
            devtools.on("Network.dataReceived", lambda one: received.append(one["dataLength"]))
            page.goto(f"http://127.0.0.1:{args.port}/")
            page.wait_for_selector("html[data-ready]")
            opening = sum(received)
            write_whole_texts(page, args.new_tokens)
            page.evaluate(WATCH)
            rounds = [write(page, received) for _ in range(args.rounds + 1)][1:]
            answer = slide(page, devtools, "#answers", args.steps)
            # The words of the answer make the text to explain.
            text = page.locator("#answers .kl-side-knn .kl-text").inner_text().split()
            page.get_by_role("button", name="own settings").click()
            page.get_by_role("tab", name="Explain").click()
            page.locator("#explain-text textarea").fill(" ".join(text[: args.words]))
            page.locator("#explain").click()
            page.wait_for_selector("#explained .kl-save", timeout=180_000)
            explained = slide(page, devtools, "#explained", args.steps)
            browser.close()
    finally:
        server.terminate()
        server.wait()

    def median(name):
        return statistics.median(one[name] for one in rounds)

    names = ("tokens", "words", "first_word_ms", "first_word_without_knn_ms", "html_bytes")
    result = {
        "opening_bytes": opening,
        "answer": {name: median(name) for name in (*names, "received_bytes")},
        "slowest_first_word_ms": max(one["first_word_ms"] for one in rounds),
        "slider_over_the_answer": answer,
        "slider_over_an_explained_text": explained,
        "load": os.getloadavg(),
    }
    settings = {**vars(args), "model": Path(args.model).name, "store": Path(args.store).name}
    record("app_page", settings, result)


if __name__ == "__main__":
    main()
