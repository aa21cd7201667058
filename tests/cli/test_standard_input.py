"""A text from standard input is read as the same text in a file."""

import io
import sys

import pytest
from conftest import TEXTS


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_marks_and_line_ends_of_others_are_no_text(run, store, model_folder, monkeypatch, ends):
    text = f"{TEXTS[0]}\n{TEXTS[1]}\n"
    data = b"\xef\xbb\xbf" + text.replace("\n", ends).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))
    result = run("explain", model_folder, store.folder, "-", "--json")
    assert result.code == 0, result.err
    assert result.json["text"] == text
