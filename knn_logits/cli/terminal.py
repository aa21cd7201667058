"""Prints answers, whole or while they are written, and warnings; says what a command is doing."""

from __future__ import annotations

import io
import logging
import os
import sys
from functools import partial
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from knn_logits.printable import json_line, one_line, printable
from knn_logits.progress import Progress


class _Status:
    """Shows on a terminal that a command is busy until it prints: by a line, or by a bar."""

    def __init__(self) -> None:
        self.bars: Progress | None = None
        self.advice = ""  # how to go on with a job that Ctrl-C has ended
        self._line: Live | None = None

    def set(self, what: str) -> None:
        if self.bars is not None:
            self.bars(what, 0, None)
            return
        self.clear()
        self._line = Live(
            Spinner("dots", Text(one_line(what))),
            console=stderr,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        if stderr.is_terminal:
            self._line.start(refresh=True)

    def clear(self) -> None:
        if self._line is not None:
            self._line.stop()
            self._line = None


status = _Status()
doing = status.set


class _Console(Console):
    """Wraps lines at words on a terminal. A file or pipe gets each line whole."""

    def print(self, *objects: Any, **options: Any) -> None:
        options.setdefault("soft_wrap", not self.is_terminal)
        super().print(*objects, **options)


class Output(_Console):
    """Standard output. What the command was doing is over when it prints its answer."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints below what the command was doing, which is erased."""
        status.clear()
        super().print(*objects, **options)


stderr = _Console(stderr=True, highlight=False)


class Printed:
    """A streamer of `generate()`, which prints each token when it is written."""

    def __init__(self, console: Console, tokenizer: Any, prompt: str = "") -> None:
        from knn_logits.engine.pieces import Pieces
        from knn_logits.engine.tokens import special_ids

        self._console = console
        self._begin = partial(Pieces, tokenizer)
        self._special = special_ids(tokenizer)
        self._pieces: Any = None
        self._print(prompt)

    def put(self, value: Any) -> None:
        """Takes the prompt's ids first, then each token."""
        ids = value.flatten().tolist()
        if self._pieces is None:
            self._pieces = self._begin(ids)
            return
        for token in ids:
            if token not in self._special:
                self._print(self._pieces.add(token))

    def _print(self, text: str) -> None:
        self._console.print(Text(printable(text)), end="", soft_wrap=True)

    @property
    def begun(self) -> bool:
        return self._pieces is not None

    def end(self) -> None:
        self._console.print()


def say(text: str = "") -> None:
    """Prints an answer on stdout; on a terminal, lines break between words."""
    status.clear()
    console, text = Output(), printable(text)
    if console.is_terminal:
        console.print(text, markup=False)
    else:
        print(text)


def tell(text: str, style: str | None = "yellow") -> None:
    """Prints a warning as one line on stderr, above any progress bar."""
    stderr.print(f"knn-logits: {one_line(text).strip()}", style=style, markup=False)


class _OneLine(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage())


def listen() -> None:
    """Prints the package's warnings as lines on stderr, and lets streams take every character."""
    # The Hub's client reads this when it is loaded. Its retries are not part of an answer.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    logger = logging.getLogger("knn_logits")
    logger.handlers = [_OneLine()]
    logger.propagate = False
    status.advice = ""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(content: dict[str, Any]) -> None:
    status.clear()
    sys.stdout.write(json_line(content, sys.stdout.encoding) + "\n")
    sys.stdout.flush()


def picked(source: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name, None) for name in names}


def answer(
    json: bool, content: dict[str, Any], *lines: str | None, seconds: float | None = None
) -> None:
    """Prints an answer: as JSON, or as those of its lines that are not None."""
    if json:
        print_json(content | ({} if seconds is None else {"seconds": round(seconds, 3)}))
        return
    for line in lines:
        if line is not None:
            say(line)


def in_documents(number: int) -> str:
    return f"{number:,} document{'s' * (number != 1)}"


def in_time(seconds: float) -> str:
    """Formats a time for people: 4 s, 12 min, 3.5 h, 9 days."""
    if seconds < 100:
        return f"{max(1.0, seconds):.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"
