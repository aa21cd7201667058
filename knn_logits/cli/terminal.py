"""Prints answers, warnings and sizes, and says on a terminal what a command is doing."""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from knn_logits.printable import Encoded, json_line, one_line, printable
from knn_logits.progress import Progress


class _Status:
    """What the command does until it prints something: a line on a terminal, or a bar."""

    def __init__(self) -> None:
        self.bars: Progress | None = None
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

# A line is never wider than this, since a wider one is hard to read.
_WIDEST = 100
# Blanks at the end of a line are tried once, and not from each of them on.
_WORD = re.compile(r"(?<!\s)(\s*)(\S+)")


def broken(text: Text, width: int, column: int = 0) -> list[Text]:
    """The lines of a text from a column on, broken between words; a word stays whole."""
    rows: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        first = 0
        for match in _WORD.finditer(line.plain):
            if column and column + cell_len(match[0]) > width:
                rows.append(line[first : match.start()])
                first, column = match.start(2), cell_len(match[2])
            else:
                column += cell_len(match[0])
        rows.append(line[first:])
        column = 0
    return rows


class _Console(Console):
    """Wraps lines at words on a terminal. A file or pipe gets each line whole."""

    @property
    def size(self) -> ConsoleDimensions:
        width, height = super().size
        return ConsoleDimensions(min(width, _WIDEST), height)

    @size.setter
    def size(self, size: tuple[int, int]) -> None:
        self._width, self._height = size

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects. A single text is broken into lines, unless another goes on after it."""
        options.setdefault("soft_wrap", True)
        whole = len(objects) == 1 and isinstance(objects[0], str | Text) and "end" not in options
        if whole and self.is_terminal:
            rows = broken(Text.assemble(objects[0]), self.width)
            objects = (Text("\n").join(rows),)
        super().print(*objects, **options)


class Output(_Console):
    """Standard output. What the command was doing is over when it prints its answer."""

    def __init__(self) -> None:
        stream: Any = Encoded(sys.stdout)
        super().__init__(file=stream, highlight=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints below what the command was doing, which is erased."""
        status.clear()
        super().print(*objects, **options)


stderr = _Console(stderr=True, highlight=False)


def say(text: str = "", hang: int = 0) -> None:
    """Prints an answer on stdout; lines go on below their first word, or at column `hang`."""
    status.clear()
    console = Output()
    text = printable(text)
    if not console.is_terminal:
        print(text)
        return
    for line in text.split("\n"):
        words = line.lstrip(" ")
        indent = hang or len(line) - len(words)
        first, rest = (line[:indent], line[indent:]) if hang else (" " * indent, words)
        rows = [row.plain for row in broken(Text(rest), console.width - indent)]
        console.print(first + ("\n" + " " * indent).join(rows), markup=False)


def tell(text: str, style: str | None = "yellow") -> None:
    """Prints a warning as one line on stderr, above any progress bar."""
    stderr.print(f"knn-logits: {one_line(text).strip()}", style=style, markup=False)


def shell(label: str, words: Sequence[str]) -> str:
    """A command to copy. On a terminal it may be several lines, each ended by a backslash."""
    console, lines = Output(), [label]
    for word in map(shlex.quote, words):
        if console.is_terminal and cell_len(f"{lines[-1]} {word} \\") > console.width:
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)


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


def in_bytes(size: int) -> str:
    """Formats a size for people: 512 bytes, 3.1 MB."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"


def in_time(seconds: float) -> str:
    """Formats a time for people: 4 s, 12 min, 3.5 h, 9 days."""
    if seconds < 100:
        return f"{max(1.0, seconds):.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"
