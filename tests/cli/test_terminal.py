"""What a person sees on a terminal: lines broken between words, and what a command is doing."""

import io
import sys

import pytest
from conftest import TEXTS
from rich.console import Console

from knn_logits.cli import terminal
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


def test_a_command_says_at_once_what_it_does(monkeypatch):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(terminal, "stderr", console)
    terminal.doing("loading libraries")
    assert "loading libraries" in stream.getvalue()
    terminal.status.clear()
    assert stream.getvalue().endswith("\x1b[2K")
