"""How a trace is printed for people."""

import io

import pytest
from rich.console import Console

from knn_logits import Trace
from knn_logits.evidence.records import (
    Contradiction,
    DocumentShare,
    NeighborTrace,
    Rival,
    SequenceTrace,
    TokenTrace,
)
from knn_logits.evidence.trace import show


def test_words_that_one_passage_replaces_make_one_line():
    rival = Rival(" two cats", 0.5, DocumentShare("s", "b", "The b", None, 0.5), entry=3)
    words = [TokenTrace(text, 0, 0.1, 0.1, 0.0, 0.5, 0.0) for text in (" ten", " dogs")]
    contradictions = [Contradiction(" ten dogs", 0, rival)]
    console = Console(file=io.StringIO(), width=200)
    show(Trace([SequenceTrace("", words, contradictions=contradictions)]), 3, console)
    lines = [line for line in console.file.getvalue().splitlines() if "the memory says" in line]
    assert len(lines) == 1
    assert lines[0].startswith("ten dogs: the memory says 'two cats'")


def hostile(text):
    neighbor = NeighborTrace(text, text, text, text, text, text, text, 0, 0.5, 1.0, 0.9)
    share = DocumentShare(text, text, text, text, 0.9)
    token = TokenTrace(text, 1, 0.5, 0.1, 0.9, 0.5, 0.9, [neighbor], documents=[share])
    return Trace([SequenceTrace(text, [token])])


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", '" onmouseover="x', "'><img src=x onerror=y>", "&amp;"]
)
def test_html_is_escaped(text):
    html = hostile(text)._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert 'onmouseover="' not in html
    assert "&amp;amp;" in html or "&lt;" in html or "&quot;" in html


def test_markup_in_a_text_is_not_markup_in_the_terminal():
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    show(hostile("[bold]x[/bold] [link=y]"), 4, console)
    assert "[bold]x[/bold]" in console.export_text()


def test_a_piped_trace_marks_the_words_in_their_passage(traced, capsys):
    traced[2].show()
    assert "»lifts twelve crates" in capsys.readouterr().out
