"""Text of others on its way to a terminal."""

import io
import json
import pathlib
import re

import pytest
from rich.console import Console

import knn_logits
from knn_logits import KNNLogitsError, Trace
from knn_logits.cli import bars as module
from knn_logits.errors import ConfigError, MissingDependencyError
from knn_logits.evidence.records import DocumentShare, NeighborTrace, SequenceTrace, TokenTrace
from knn_logits.printable import Encoded, json_line, one_line, printable

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
STEERING = ["\x1b[2J", "\x9b2J", "\r", "\x00", "\x7f", "\u202e", "\u2066", "\u200f", "\u061c"]
STEERING += ["\u2028", "\ud800", CLIPBOARD]


def steers(text):
    return re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", text
    )


@pytest.mark.parametrize("text", STEERING)
def test_what_steers_is_replaced(text):
    for shown in (printable(f"a{text}b"), one_line(f"a{text}b")):
        assert not steers(shown)
        shown.encode("utf-8")
        assert shown[0] + shown[-1] == "ab"


def test_what_is_text_stays():
    text = "Grüße\tαβγ\n你好 👍🏽 👩‍👩‍👧 שלום"
    assert printable(text) == text
    assert printable("a\r\nb") == "a\nb"
    assert one_line(" a\r\n\u2028 b\t") == " a b "
    assert one_line("") == ""


@pytest.mark.parametrize("kind", [KNNLogitsError, ConfigError, MissingDependencyError])
def test_an_error_says_nothing_that_steers(kind):
    assert str(kind(f"the tokenizer {CLIPBOARD} is unknown")).startswith("the tokenizer \ufffd]52")
    assert str(kind()) == str(Exception())


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii", "unknown", None])
@pytest.mark.parametrize("text", [*STEERING, "λ → ≥", "👍", "plain"])
def test_json_is_the_same_when_it_is_read_again(text, encoding):
    line = json_line({text: [text, 1.5, None]}, encoding)
    assert json.loads(line) == {text: [text, 1.5, None]}
    assert not steers(line)
    line.encode("utf-8" if encoding in (None, "unknown") else encoding)


def test_a_stream_takes_characters_that_its_encoding_lacks():
    raw = io.BytesIO()
    stream = Encoded(io.TextIOWrapper(raw, encoding="cp1252"))
    stream.write("λ → ≥ ü…")
    stream.flush()
    assert raw.getvalue().decode("cp1252") == "\\u03bb \\u2192 \\u2265 ü…"


@pytest.fixture
def hostile():
    text = f"word{CLIPBOARD}\u202e\x9b2J"
    neighbor = NeighborTrace(text, text, text, text, text, text, text, 0, 0.5, 1.0, 0.9, text)
    share = DocumentShare(text, text, text, text, 0.9)
    token = TokenTrace(text, 1, 0.5, 0.1, 0.9, 0.5, 0.9, [neighbor], documents=[share])
    return Trace([SequenceTrace(text, [token])])


def test_a_trace_does_not_steer(hostile, monkeypatch, capsys):
    hostile.show()
    shown = capsys.readouterr().out
    assert "word" in shown
    assert not steers(shown)
    assert not steers(hostile._repr_html_())
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    hostile.show()
    assert "\\u2265" in raw.getvalue().decode("ascii")


def test_a_phase_with_a_foreign_name_does_not_steer(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    monkeypatch.setattr(module, "stderr", console)
    with module.Bars("") as bars:
        bars(f"[red]{CLIPBOARD}name.txt", 1, 2)
    written = console.file.getvalue()
    assert "[red]" in written
    assert "]52;c" in written
    assert "\x1b]52" not in written


def test_the_command_line_prints_in_one_place():
    folder = pathlib.Path(knn_logits.__file__).parent
    for path in folder.rglob("*.py"):
        found = re.findall(r"typer\.echo\(|stderr\.print\(|(?<![._\w])print\(", path.read_text())
        where = path.relative_to(folder).as_posix()
        assert not found or where in ("cli/terminal.py", "cli/__init__.py"), (where, found)
