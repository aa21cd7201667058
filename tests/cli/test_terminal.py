"""What a person sees on a terminal: lines broken between words, and what a command is doing."""

import io
import itertools
import sys

import pytest
from conftest import TEXTS
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from knn_logits.cli import bars as bars_module
from knn_logits.cli import main, terminal
from knn_logits.cli.bars import Bars
from knn_logits.cli.terminal import Printed

LONG = "  The harbour of Oldenport, λλλλ 起重機, was dug in 1204 for Queen Maira the Second. " * 3


@pytest.fixture(autouse=True)
def kind_of_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture(params=[20, 200])
def screen(request, monkeypatch):
    """Makes a terminal in the test; returns what is written there, and its width."""

    class Screen(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    def begin():
        stream = Screen()
        monkeypatch.setenv("COLUMNS", str(request.param))
        monkeypatch.setenv("NO_COLOR", "1")
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, stream)
        return stream, min(request.param, 100)

    return begin


def whole_words(written, width, text):
    lines = written.rstrip("\n").split("\n")
    assert len(lines) > 1
    assert all(cell_len(line) <= width for line in lines)
    assert written.split() == text.split()
    # No line could have taken the first word of the next.
    for line, after in itertools.pairwise(lines):
        assert cell_len(f"{line} {after.split()[0]}") > width


def test_an_answer_breaks_between_words(screen):
    stream, width = screen()
    terminal.say(LONG)
    whole_words(stream.getvalue(), width, LONG)
    assert all(line.startswith("  ") for line in stream.getvalue().splitlines())


def test_a_word_that_is_too_wide_stays_whole(screen):
    stream, _ = screen()
    path = "/" + "folder/" * 40
    terminal.say(f"written: {path}")
    assert path in stream.getvalue().splitlines()


def test_warnings_and_errors_break_between_words(screen, monkeypatch):
    stream, width = screen()
    monkeypatch.setattr(terminal, "stderr", type(terminal.stderr)(stderr=True, highlight=False))
    terminal.tell(LONG)
    warned = stream.getvalue()
    whole_words(warned, width, f"knn-logits: {LONG}")
    monkeypatch.setattr(sys, "argv", ["knn-logits", "info", LONG])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    written = stream.getvalue()[stream.getvalue().index("knn-logits: ", len(warned)) :]
    whole_words(written, width, written)


def test_a_pipe_gets_whole_lines(capsys):
    terminal.say(LONG)
    terminal.tell(LONG)
    captured = capsys.readouterr()
    assert captured.out == LONG + "\n"
    assert captured.err.count("\n") == 1


def test_streamed_words_break_as_a_whole_text_does(screen, tokenizer):
    import torch

    stream, width = screen()
    text = f"{TEXTS[2]} {TEXTS[1]}\n\nAn end."
    ids = tokenizer(text).input_ids
    printed = Printed(terminal.Output(), tokenizer, prompt="The first words ")
    for token in ([], *([id] for id in ids)):
        printed.put(torch.tensor(token, dtype=torch.long))
    printed.end()
    written = stream.getvalue()
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert written.split() == f"The first words {whole}".split()
    assert all(len(line) <= width for line in written.splitlines())
    assert len(written.splitlines()) > 3


def test_phases_of_unknown_length_end_with_what_they_did(monkeypatch):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(bars_module, "stderr", console)
    with Bars("again") as shown:
        for step in (
            ("tokens", 0, None),
            ("bytes read", 10, 84_297),
            ("tokens", 25_312, None),
            ("bytes read", 84_297, 84_297),
            ("measuring the speed", 0, None),
        ):
            shown(*step)
    last = Text.from_ansi(stream.getvalue()).plain.replace("\r", "\n").splitlines()[-3:]
    for line, name, steps in zip(
        last,
        ("tokens", "bytes read", "measuring the speed"),
        ("25312/25312", "84297/84297", "0/0"),
        strict=True,
    ):
        assert line.startswith(name)
        assert steps in line


def test_a_command_says_at_once_what_it_does(monkeypatch):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(terminal, "stderr", console)
    terminal.doing("loading libraries")
    assert "loading libraries" in stream.getvalue()
    terminal.status.clear()
    assert stream.getvalue().endswith("\x1b[2K")
