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


def call(monkeypatch, capsys, *args):
    """Runs `knn-logits ARGS` in this process."""
    monkeypatch.setattr(sys, "argv", ["knn-logits", *map(str, args)])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err)


def write_corpus(path, texts=TEXTS):
    rows = [
        {"id": f"d{number}", "title": f"Title {number}", "text": text}
        for number, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
