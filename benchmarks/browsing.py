"""What the benchmarks of the page share: starting it, and setting how much it writes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]


def start(arguments, port):
    """Starts a page with arguments of Python, and waits until it answers.

    Returns:
        The process, and the time at which it was started.
    """
    started = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, *arguments, "--port", str(port)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while time.perf_counter() - started < 180 and server.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{port}/", timeout=5).raise_for_status()
            return server, started
        except httpx.HTTPError:
            time.sleep(0.05)
    server.kill()
    raise SystemExit("the page did not start; start it by hand to see why")


def write_whole_texts(page, tokens):
    """Lets the page write so many tokens, over the ends of sentences."""
    page.get_by_role("button", name="Length and sampling").click()
    page.get_by_label("End with the sentence").uncheck()
    length = page.get_by_label("number input for Maximum new tokens")
    length.fill(str(tokens))
    length.press("Tab")
