"""Prints answers, warnings, progress and sizes, and ends a command on Ctrl-C."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from knn_logits.printable import Encoded, json_line, one_line, printable
from knn_logits.progress import WHOLE

if TYPE_CHECKING:
    from knn_logits.generation.processor import KNNLogitsProcessor

# What a job says to do when Ctrl-C has stopped it.
AGAIN = "run the same command again, and it goes on here"
UNCHANGED = "the datastore is as it was"

stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str = "") -> None:
    """Prints an answer on stdout, whatever characters it has."""
    print(printable(text))


def tell(text: str, style: str | None = "yellow") -> None:
    """Prints a warning as one line on stderr, below any progress bar."""
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
    """Prints one JSON object on one line of stdout."""
    sys.stdout.write(json_line(content, sys.stdout.encoding) + "\n")
    sys.stdout.flush()


def picked(source: Any, *names: str) -> dict[str, Any]:
    """Some attributes of an object, by name."""
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


# Ctrl-C sets this. Python drops an exception that is raised while it collects garbage. The next
# report of progress then ends the job.
_interrupted = threading.Event()


def _on_interrupt(number: int, frame: Any) -> None:
    _interrupted.set()
    signal.default_int_handler(number, frame)


@contextmanager
def _noticing_interrupts() -> Iterator[None]:
    _interrupted.clear()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, _on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Ends with one line and the exit status 130 when the user presses Ctrl-C."""
    try:
        with _noticing_interrupts():
            yield
    except KeyboardInterrupt:
        tell(f"stopped; {advice}", style=None)
        raise typer.Exit(130) from None


def stdout_table(table: Any) -> None:
    """Prints a table on stdout, which is part of an answer. It is never cut to a terminal."""
    lines = Console(width=200, highlight=False, color_system=None)
    with lines.capture() as held:
        lines.print(table)
    for line in held.get().rstrip("\n").splitlines():
        say(line.rstrip())


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


class _Steps(MofNCompleteColumn):
    """Shows the steps done of all steps, or a percentage where progress is a share."""

    def render(self, task: Task) -> Text:
        if task.total == WHOLE:
            return Text(f"{task.percentage:.1f}%", style="progress.download")
        return super().render(task)


# A job whose stderr is no terminal says so often how far it is. A shorter job says nothing.
_EVERY = 15.0


class Bars:
    """A bar on stderr for each phase of a job; a line now and then where that is a file or pipe."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._started, self._ended = time.monotonic(), 0.0
        self._next_line = self._started + _EVERY
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Steps(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=stderr,
            disable=not stderr.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last: str | None = None

    @property
    def seconds(self) -> float:
        """The time since the job began, up to its end."""
        return (self._ended or time.monotonic()) - self._started

    def __enter__(self) -> Bars:
        self._ending = ExitStack()
        self._ending.enter_context(interruptible(self._advice))
        self._progress.start()
        self._ending.callback(self._stop)
        return self

    def __exit__(self, *error: Any) -> None:
        self._ending.__exit__(*error)

    def _stop(self) -> None:
        self._finish()
        self._progress.stop()
        self._ended = time.monotonic()

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """See `knn_logits.progress.Progress`."""
        if _interrupted.is_set():
            _interrupted.clear()
            raise KeyboardInterrupt
        if phase not in self._tasks:
            self._finish()
            self._tasks[phase] = self._progress.add_task(one_line(phase), total=total)
            self._last = phase
        self._progress.update(self._tasks[phase], completed=done, total=total)
        if not stderr.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _EVERY
            of = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            tell(f"{phase}: {f'{done / WHOLE:.0%}' if total == WHOLE else of}", style=None)

    def _finish(self) -> None:
        if self._last is None:
            return
        task = next(task for task in self._progress.tasks if task.id == self._tasks[self._last])
        if task.total is None:
            self._progress.update(
                task.id, total=max(1, task.completed), completed=max(1, task.completed)
            )


class Printed:
    """A streamer of `generate()`, which prints each token in the colour of the memory's share."""

    def __init__(self, console: Console, tokenizer: Any, knn: KNNLogitsProcessor | None) -> None:
        from knn_logits.engine.pieces import Pieces
        from knn_logits.engine.tokens import special_ids

        self._console, self._knn = console, knn
        self._begin = partial(Pieces, tokenizer)
        self._special = special_ids(tokenizer)
        self._pieces: Any = None

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
                self._console.print(Text(text, style=style), end="", soft_wrap=True)

    @property
    def begun(self) -> bool:
        """Whether it has printed anything."""
        return self._pieces is not None

    def end(self) -> None:
        """Ends the line."""
        self._console.print()


def on_stdout() -> Console:
    """A console on standard output, which takes every character."""
    stream: Any = Encoded(sys.stdout)
    return Console(file=stream, highlight=False)


def printed(prompt: str, tokenizer: Any) -> Printed:
    """Prints a prompt on standard output, and then its continuation, without colours."""
    console = on_stdout()
    console.print(printable(prompt), end="", markup=False, soft_wrap=True)
    return Printed(console, tokenizer, None)
