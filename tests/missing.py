"""What some tests need and a machine may lack: a browser, llama.cpp, a model that people use.

Without it these tests are skipped, and `pytest -rs` says how to get it. Where a variable of the
environment says `required`, as in continuous integration, they fail.
"""

import contextlib
import importlib.util
import os
import shutil

import pytest

CHROMIUM = os.environ.get("KNN_LOGITS_CHROMIUM") or shutil.which("chromium")
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")


def skip(variable, how):
    """Skips a test, or fails it where the variable says `required`; `how` mends what is missing."""
    if os.environ.get(variable) == "required":
        pytest.fail(how)
    pytest.skip(f"{how}, and run `make test` again")


def llama_cpp():
    """Skips a test where llama.cpp or the package that writes its files is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("llama_cpp", "gguf")):
        skip("KNN_LOGITS_GGUF", "install llama.cpp (pip install llama-cpp-python gguf)")


@contextlib.contextmanager
def browser():
    """Runs Debian's chromium, driven by Playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        skip("KNN_LOGITS_BROWSER", "install Playwright (pip install -r requirements-dev.txt)")
    if not CHROMIUM:
        skip("KNN_LOGITS_BROWSER", "install chromium (apt-get install chromium)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield running
        running.close()
