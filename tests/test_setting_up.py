"""What a fresh clone installs, and what a run of the tests says that the machine lacks."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
CASES = """
import missing, pytest

@pytest.fixture(scope="session")
def browser():
    missing.skip("KNN_LOGITS_BROWSER", "install chromium")

@pytest.mark.parametrize("number", range(4))
def test_page(browser, number): pass

def test_model(): missing.skip("KNN_LOGITS_INSTRUCT", "connect to a network")

def test_gpu(): pytest.skip("no GPU")
"""


@pytest.fixture
def cases(pytester, monkeypatch):
    """Runs tests that lack a browser, a model and a GPU."""
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.delenv("KNN_LOGITS_BROWSER", raising=False)
    monkeypatch.delenv("KNN_LOGITS_INSTRUCT", raising=False)
    pytester.makeconftest("from missing import pytest_sessionfinish")
    pytester.makepyfile(CASES)
    return pytester.runpytest_subprocess


@pytest.mark.parametrize("options", [[], ["-q", "-n", "2"]], ids=["alone", "workers"])
def test_the_last_lines_say_what_was_skipped_and_how_to_get_it(cases, options):
    result = cases(*options)
    result.assert_outcomes(skipped=6)
    *_, totals, page, model = (line for line in result.outlines if line)
    assert "6 skipped" in totals
    assert page == "4 tests were skipped: install chromium, and run `make test` again"
    assert model == "1 test was skipped: connect to a network, and run `make test` again"


def test_what_is_required_is_not_skipped(cases, monkeypatch):
    monkeypatch.setenv("KNN_LOGITS_BROWSER", "required")
    result = cases()
    result.assert_outcomes(errors=4, skipped=2)
    assert "4 tests" not in result.outlines[-1]


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize(
    ("target", "files"),
    [
        ("demo", {"requirements.txt"}),
        ("app", {"requirements.txt"}),
        ("setup", {"requirements.txt", "requirements-dev.txt"}),
    ],
)
def test_the_demo_installs_no_tools_of_developers(tmp_path, monkeypatch, target, files):
    for name in ("MAKEFLAGS", "REQUIREMENTS"):  # of the `make test` that runs this
        monkeypatch.delenv(name, raising=False)
    command = ["make", "--dry-run", target, f"VENV={tmp_path}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {word for word in printed.split() if word.startswith("requirements")} == files
