"""Calls the command line from tests, and writes a corpus for it."""

import json
import sys

from conftest import TEXTS

from knn_logits.cli import main


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out.splitlines()[-1])

    @property
    def line(self):
        """All of stderr, which is one line."""
        (line,) = self.err.splitlines()
        return line


class Runner:
    """Runs `knn-logits ARGS` in this process."""

    def __init__(self, monkeypatch, capsys):
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *args):
        self._monkeypatch.setattr(sys, "argv", ["knn-logits", *map(str, args)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = self._capsys.readouterr()
        return Result(code, captured.out, captured.err)

    def good(self, *args):
        """Runs a command that succeeds."""
        result = self(*args)
        assert result.code == 0, result.err
        return result

    def refused(self, *args):
        """Runs a command that fails as expected: with a line on stderr, and no traceback."""
        result = self(*args)
        assert result.code == 1, (result.code, result.out, result.err)
        assert "knn-logits: " in result.err
        assert "Traceback" not in result.err
        return result


def write_corpus(path, texts=TEXTS):
    rows = [
        {"id": f"d{number}", "title": f"Title {number}", "text": text}
        for number, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
