"""The child process that parses untrusted files: its limits, its end, and what it answers."""

import os
import sys

import pytest
from corpus_files import write
from office_files import notebook, pdf

from knn_logits.corpus import reading, texts
from knn_logits.corpus.parsers import Text
from knn_logits.corpus.reading import read_corpus
from knn_logits.corpus.rows import TEXT_KEYS, UnreadableError
from knn_logits.corpus.sandbox import PROGRAM, Sandbox
from knn_logits.errors import LimitError

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems may not limit it")


def parts(sandbox, path, reader="markup.read"):
    return list(sandbox.parts(path, reader, TEXT_KEYS))


def runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<p>Text.</p>")
    return path


def test_one_child_reads_many_files_and_is_replaced_when_it_dies(page):
    with Sandbox() as sandbox:
        assert isinstance(parts(sandbox, page)[-1], Text)
        first = sandbox.child.pid
        parts(sandbox, page)
        assert sandbox.child.pid == first
        os.kill(first, 9)
        os.waitpid(first, 0)
        assert parts(sandbox, page)[-1].text.strip() == "Text."
        assert sandbox.child.pid != first


def test_a_reader_that_stops_leaves_no_child_with_half_an_answer(page):
    page.write_text("".join(f"<h1>{number}</h1><p>Text.</p>" for number in range(100)))
    with Sandbox() as sandbox:
        reading = sandbox.parts(page, "markup.read", TEXT_KEYS)
        next(reading)
        child = sandbox.child.pid
        reading.close()
        assert not runs(child)
        assert len(parts(sandbox, page)) == 201
        child = sandbox.child.pid
    assert not runs(child)


@on_linux
def test_a_file_that_fills_the_memory_costs_its_child_alone(tmp_path, page):
    big = tmp_path / "big.ipynb"
    big.write_text(notebook(("code", "x" * (64 << 20))))
    with Sandbox(memory=96 << 20) as sandbox:
        with pytest.raises(UnreadableError, match=r"more than 0\.0938 GiB"):
            parts(sandbox, big, "prose.read_notebook")
        assert parts(sandbox, page)[-1].text.strip() == "Text."


SILENT = "import time; time.sleep(600)"


def test_a_child_that_does_not_answer_is_killed(page):
    with (
        Sandbox(patience=0.2, program=SILENT) as sandbox,
        pytest.raises(UnreadableError, match=r"reading it took longer than 0 s"),
    ):
        parts(sandbox, page)


def test_the_callback_for_bytes_stops_a_document_that_is_parsed(tmp_path):
    """A page that takes long: `on_bytes` is asked all the while."""
    path = write(tmp_path / "a.pdf", pdf(*["words " * 20] * 3000))
    calls = []

    def on_bytes(done):
        calls.append(done)
        if len(calls) == 3:
            raise LimitError("enough")

    with pytest.raises(LimitError, match="enough"):
        list(read_corpus([path], on_bytes=on_bytes))


NONSENSE = [
    "no JSON",
    "[]",
    "{}",
    '["text", 1, "p", "", ""]',
    '["fields", {"text": "a"}, 1, "x"]',
    '["fields", {"text": 7}, 1, 0.5]',
    '[["end"]]',
    "7",
    "",
    "[" * 10**5,
]


@pytest.mark.parametrize("answer", NONSENSE)
def test_a_child_that_answers_nonsense_is_not_believed(page, answer):
    program = (
        f"import sys; sys.stdin.readline(); print({answer!r}, flush=True); sys.stdin.readline()"
    )
    with Sandbox(program=program, patience=20) as sandbox:
        with pytest.raises(UnreadableError, match="crashed"):
            parts(sandbox, page)
        assert sandbox.child is None


def test_more_text_than_a_document_has_is_refused(page, monkeypatch):
    page.write_text("<p>" + "words " * 10_000)
    flood = (
        "import sys; sys.stdin.readline()\n"
        'while True: print(\'["text", "\' + \'x\' * (1 << 20) + \'", "p", "", ""]\')'
    )
    monkeypatch.setattr(reading, "Sandbox", lambda beat: Sandbox(program=flood, beat=beat))
    monkeypatch.setattr(texts, "MOST_TEXT", 8 << 20)
    skipped = []
    list(read_corpus([str(page)], on_skip=lambda *skip: skipped.append(skip)))
    assert "more text than a document" in skipped[0][1]


def test_many_files_have_a_time_together(tmp_path):
    late = "import sys, time; sys.stdin.readline(); time.sleep(1); print('[\"end\"]', flush=True)"
    slow = f"while True:\n {late}"
    with Sandbox(program=slow, longest=2.5, patience=20) as sandbox:
        for number in range(9):
            path = tmp_path / f"{number}.html"
            path.write_text("x")
            try:
                parts(sandbox, path)
            except UnreadableError as error:
                assert "longer than" in str(error)  # noqa: PT017
                break
        assert 1 < number < 5
        with pytest.raises(UnreadableError, match="the files before it took all the time"):
            parts(sandbox, path)


@on_linux
def test_the_child_can_write_no_file(page, tmp_path):
    path = tmp_path / "written"
    writes = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
        "from knn_logits.corpus.sandbox import confine; confine(1 << 30); "
        f"file = open({str(path)!r}, 'w'); file.write('text'); file.flush()"
    )
    with Sandbox(program=writes) as sandbox, pytest.raises(UnreadableError, match="crashed"):
        parts(sandbox, page)
    assert path.read_text() == ""


def test_without_the_extra_a_line_names_it(tmp_path):
    blocked = "import sys; sys.modules['pypdf'] = None; " + PROGRAM
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf("Text."))
    needs = r'its format needs more packages: pip install "knn-logits\[documents\]"'
    with Sandbox(program=blocked) as sandbox, pytest.raises(UnreadableError, match=needs):
        parts(sandbox, path, "pdf.read")
