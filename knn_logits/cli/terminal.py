"""Prints answers, whole or while they are written, and warnings; says what a command is doing."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from knn_logits.printable import Encoded, json_line, one_line, printable
from knn_logits.progress import Progress

if TYPE_CHECKING:
    from knn_logits.generation.processor import KNNLogitsProcessor


class _Status:
    """Shows on a terminal that a command is busy until it prints: by a line, or by a bar."""

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


# A word that may be incomplete, with the space before it.
_UNFINISHED = re.compile(r"\s*\S*\Z")


class _Lines:
    """Prints text that comes in pieces. On a terminal its lines break between words."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._column = 0
        self._held = Text()

    def add(self, text: Text) -> None:
        """Prints what is known to be whole words."""
        if not self._console.is_terminal:
            self._console.print(text, end="")
            return
        self._held.append_text(text)
        unfinished = _UNFINISHED.search(self._held.plain)
        assert unfinished is not None
        self._print(self._held[: unfinished.start()])
        self._held = self._held[unfinished.start() :]

    def end(self) -> None:
        self._print(self._held)
        self._held, self._column = Text(), 0
        self._console.print()

    def _print(self, text: Text) -> None:
        *before, last = broken(text, self._console.width, self._column)
        self._column = cell_len(last.plain) + (0 if before else self._column)
        self._console.print(Text("\n").join([*before, last]), end="")


class Printed:
    """A streamer of `generate()`, which prints each token in the colour of the memory's share."""

    def __init__(
        self,
        console: Console,
        tokenizer: Any,
        knn: KNNLogitsProcessor | None = None,
        prompt: str = "",
    ) -> None:
        from knn_logits.engine.pieces import Pieces
        from knn_logits.engine.tokens import special_ids

        self._lines, self._knn = _Lines(console), knn
        self._begin = partial(Pieces, tokenizer)
        self._special = special_ids(tokenizer)
        self._pieces: Any = None
        self._lines.add(Text(printable(prompt)))

    def put(self, value: Any) -> None:
        """Takes the prompt's ids first, then each token."""
        ids = value.flatten().tolist()
        if self._pieces is None:
            self._pieces = self._begin(ids)
            return
        from knn_logits.evidence.render import level_style

        for token in ids:
            if token not in self._special:
                text = printable(self._pieces.add(token))
                vote = self._knn.vote if self._knn is not None else None
                style = level_style(vote.influence(0, token)) if vote is not None else ""
                self._lines.add(Text(text, style=style))

    @property
    def begun(self) -> bool:
        return self._pieces is not None

    def end(self) -> None:
        self._lines.end()


def say(text: str = "") -> None:
    """Prints an answer on stdout; on a terminal, lines break between words."""
    status.clear()
    console, text = Output(), printable(text)
    if not console.is_terminal:
        print(text)
        return
    for line in text.split("\n"):
        words = line.lstrip(" ")
        indent = " " * (len(line) - len(words))
        rows = [row.plain for row in broken(Text(words), console.width - len(indent))]
        console.print(indent + ("\n" + indent).join(rows), markup=False)


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
