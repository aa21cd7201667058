"""What a person sees on a terminal: lines broken between words, and what a command is doing."""

import io
import sys

import pytest
from conftest import TEXTS
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from knn_logits.cli import bars as bars_module
from knn_logits.cli import terminal
from knn_logits.cli.bars import Bars
from knn_logits.cli.terminal import Printed

LONG = "The harbour of Oldenport, λλλλ 起重機, was dug in 1204 for Queen Maira the Second. " * 3


@pytest.fixture(autouse=True)
def kind_of_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def screen(monkeypatch):
    """Makes a terminal of 40 columns in the test; returns what is written there."""

    class Screen(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    def begin():
        stream = Screen()
        monkeypatch.setenv("COLUMNS", "40")
        monkeypatch.setenv("NO_COLOR", "1")
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, stream)
        return stream

    return begin


def whole_words(written, text):
    lines = written.rstrip("\n").split("\n")
    assert len(lines) > 1
    assert all(cell_len(line.rstrip()) <= 40 for line in lines)
    assert written.split() == text.split()


def test_answers_and_warnings_break_between_words(screen, monkeypatch):
    stream = screen()
    terminal.say(LONG)
    said = stream.getvalue()
    whole_words(said, LONG)
    monkeypatch.setattr(terminal, "stderr", type(terminal.stderr)(stderr=True, highlight=False))
    terminal.tell(LONG)
    whole_words(stream.getvalue().removeprefix(said), f"knn-logits: {LONG}")


def test_a_pipe_gets_whole_lines(capsys):
    terminal.say(LONG)
    terminal.tell(LONG)
    captured = capsys.readouterr()
    assert captured.out == LONG + "\n"
    assert captured.err.count("\n") == 1


def test_streamed_words_are_printed_as_they_come(screen, tokenizer):
    import torch

    text = f"{TEXTS[2]} {TEXTS[1]}\n\nAn end."
    ids = tokenizer(text).input_ids
    stream = screen()
    printed = Printed(terminal.Output(), tokenizer, prompt="The first words ")
    for token in ([], *([id] for id in ids)):
        printed.put(torch.tensor(token, dtype=torch.long))
    printed.end()
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert stream.getvalue() == f"The first words {whole}\n"


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
