"""Measures when the page is usable after `make app`, and how fast it streams beside the library.

python benchmarks/app_speed.py MODEL STORE --rounds 7

The benchmark needs chromium and Playwright (requirements-dev.txt). The page and the library take
turns at writing the same text with the same settings. The library runs in this process, and both
have one thread.
"""

import argparse
import os
import shutil
import statistics
import time
from pathlib import Path

import torch
from browsing import start, write_whole_texts
from common import record
from playwright.sync_api import sync_playwright

from knn_logits import KNNLogitsProcessor
from knn_logits_app import Library

# This JavaScript records when new text appears on the page, and how long the text is then.
WATCH = """() => {
  window.frames_seen = [];
  const look = () => {
    const text = document.querySelector('#answers .kl-side-knn .kl-text');
    const prompt = document.querySelector('#answers .kl-side-knn .kl-prompt');
    if (!text) return;
    const length = text.textContent.length - prompt.textContent.length;
    const last = window.frames_seen.at(-1);
    if (!last || last[1] !== length) window.frames_seen.push([performance.now(), length]);
  };
  new MutationObserver(look).observe(document.querySelector('#answers'),
    {subtree: true, childList: true, characterData: true});
}"""


def cpu_seconds(server):
    """Returns the CPU seconds of a process so far, which other processes hardly affect."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def speed_of(library, prompt, tokens):
    """Returns tokens per second of the library alone, and the number of tokens."""
    times = []

    class Clock:
        def put(self, _):
            times.append(time.perf_counter())

        def end(self):
            pass

    ids = library.tokenizer(prompt, return_tensors="pt")["input_ids"]
    with KNNLogitsProcessor(library.model, library.store, threads=1, check=False) as knn:
        library.model.generate(
            ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0, logits_processor=[knn],
            streamer=Clock(),
        )  # fmt: skip
    # The first call has the prompt.
    return (len(times) - 2) / (times[-1] - times[1]), len(times) - 1


def in_the_page(page, prompt):
    """Measures how fast an answer appears on the page.

    Returns:
        Tokens per second from the first frame to the last, the number of tokens, and of frames.
    """
    page.locator("#prompt textarea").fill(prompt)
    page.evaluate(
        "document.querySelectorAll('#answers .kl-out > *').forEach((one) => one.remove())"
    )
    page.evaluate("window.frames_seen = []")
    page.locator("#write").click()
    page.wait_for_selector("#answers .kl-save", timeout=60_000)
    frames = [one for one in page.evaluate("window.frames_seen") if one[1] > 0]
    tokens = int(page.locator("#answers .kl-foot span").first.inner_text().split()[0])
    (first, some), (last, everything) = frames[0], frames[-1]
    written = tokens * (everything - some) / everything
    return written / ((last - first) / 1000), tokens, len(frames)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt", default="The")
    parser.add_argument("--port", type=int, default=7893)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        starts, used = [], []
        for number in range(3):
            server, started = start(["-m", "knn_logits", "app", args.model, args.store], args.port)
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{args.port}/")
            page.wait_for_selector("html[data-ready]", timeout=60_000)
            page.locator("#open-generate").click()
            page.wait_for_selector("#answers .kl-text", timeout=60_000)
            starts.append(time.perf_counter() - started)
            used.append(cpu_seconds(server))
            if number < 2:
                page.close()
                server.terminate()
                server.wait()
        try:
            library = Library.open(args.model, [args.store])
            page.get_by_label("Compare with the model alone").uncheck()
            write_whole_texts(page, args.new_tokens)
            page.evaluate(WATCH)
            in_the_page(page, args.prompt)
            speed_of(library, args.prompt, args.new_tokens)
            alone, shown, frames, tokens = [], [], [], 0
            for _ in range(args.rounds):
                alone.append(speed_of(library, args.prompt, args.new_tokens)[0])
                speed, tokens, count = in_the_page(page, args.prompt)
                shown.append(speed)
                frames.append(count)
        finally:
            server.terminate()
            server.wait()
            browser.close()
    result = {
        "seconds_until_usable": [round(one, 2) for one in starts],
        "cpu_seconds_of_the_server_until_then": [round(one, 2) for one in used],
        "tokens": tokens,
        "frames": statistics.median(frames),
        "tokens_per_second_library": statistics.median(alone),
        "tokens_per_second_page": statistics.median(shown),
        "ratio": statistics.median(shown) / statistics.median(alone),
        "ratio_of_fastest": max(shown) / max(alone),
        "load": os.getloadavg(),
    }
    record("app_speed", vars(args), result)


if __name__ == "__main__":
    main()
