"""Shows the progress of long jobs, and ends a command on Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import typer
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from knn_logits.cli.terminal import in_time, status, stderr, tell
from knn_logits.printable import one_line

# What a job says to do when Ctrl-C has stopped it.
AGAIN = "run the same command again to resume"
UNCHANGED = "the datastore is unchanged"

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


@contextmanager
def exits_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM end the process like an exit, so that temporary files are removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _number(steps: float, most: float) -> str:
    return f"{steps:,.0f}" if most < 10**7 else f"{steps / 10**6:,.1f} M"


class _Steps(ProgressColumn):
    """Shows the steps done, of all steps if their number is known; or a percentage of a share."""

    def render(self, task: Task) -> Text:
        done, total = task.completed, task.total
        if total is None or task.fields["open"]:
            steps = task.fields["steps"]
            text = _number(steps, steps) if steps else ""
        else:
            text = f"{_number(done, total)} of {_number(total, total)}"
        return Text(text, style="progress.download")


class _Time(ProgressColumn):
    """Shows the time that is left, if it can be told, and after the end the time that passed."""

    def render(self, task: Task) -> Text:
        if task.finished or task.time_remaining is None:
            passed = task.finished_time if task.finished else task.elapsed
            return Text(in_time(passed or 0.0), style="progress.elapsed")
        return Text(f"{in_time(task.time_remaining)} left", style="progress.remaining")


# A job whose stderr is no terminal says so often how far it is. A shorter job says nothing.
_EVERY = 15.0


class Bars:
    """A bar on stderr for each phase of a job; a line now and then where that is a file or pipe."""

    def __init__(self, advice: str, *, transient: bool = False) -> None:
        self._advice = advice
        self._started, self._ended = time.monotonic(), 0.0
        self._next_line = self._started + _EVERY
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            _Steps(),
            _Time(),
            console=stderr,
            disable=not stderr.is_terminal,
            transient=transient,
        )
        self._tasks: dict[str, TaskID] = {}

    @property
    def seconds(self) -> float:
        """The time since the job began, up to its end."""
        return (self._ended or time.monotonic()) - self._started

    def __enter__(self) -> Bars:
        status.clear()
        self._ending = ExitStack()
        self._ending.enter_context(interruptible(self._advice))
        if status.bars is None:
            status.bars = self
            self._progress.start()
        self._ending.callback(self._stop)
        return self

    def __exit__(self, *error: Any) -> None:
        self._ending.__exit__(*error)

    def _stop(self) -> None:
        self._ended = time.monotonic()
        if status.bars is self:
            self._finish()
            self._progress.stop()
            status.bars = None

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        if _interrupted.is_set():
            _interrupted.clear()
            raise KeyboardInterrupt
        if status.bars not in (None, self):
            status.bars(phase, done, total)
            return
        if phase not in self._tasks:
            self._finish()
            self._tasks[phase] = self._progress.add_task(
                one_line(phase), total=total, steps=done, open=total is None
            )
        task = self._task(phase)
        if total is None and task.finished:
            # It goes on beside a later phase.
            task.total = task.finished_time = None
        shown: dict[str, Any] = {"steps": done, "open": total is None}
        self._progress.update(task.id, completed=done, total=total, **shown)
        if not stderr.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _EVERY
            of = f": {done:,}" if total is None else f": {done:,} of {total:,}"
            tell(phase if total is None and not done else phase + of, style=None)

    def _task(self, phase: str) -> Task:
        number = self._tasks[phase]
        return next(task for task in self._progress.tasks if task.id == number)

    def _finish(self) -> None:
        """Ends the phases that have not said how many steps they take."""
        for phase in self._tasks:
            task = self._task(phase)
            if task.total is None:
                steps = max(1, task.completed)
                self._progress.update(task.id, total=steps, completed=steps)
