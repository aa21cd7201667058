"""Shows the progress of long jobs, and says on Ctrl-C how to go on."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from knn_logits.cli.terminal import status, stderr, tell
from knn_logits.printable import one_line

# Advice after Ctrl-C.
AGAIN = "run the same command again to resume"

# Seconds between two lines of a job whose stderr is no terminal. A shorter job prints none.
_INTERVAL = 15.0


class Bars:
    """A bar on stderr for each phase of a job; a line now and then where that is a file or pipe."""

    def __init__(self, advice: str, *, transient: bool = False) -> None:
        self._advice = advice
        self._started, self._ended = time.monotonic(), 0.0
        self._next_line = self._started + _INTERVAL
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
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
        status.bars = self
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._ended = time.monotonic()
        self._finish()
        self._progress.stop()
        status.bars = None
        if kind is KeyboardInterrupt:
            status.advice = f"; {self._advice}"

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        if phase not in self._tasks:
            self._finish()
            self._tasks[phase] = self._progress.add_task(one_line(phase), total=total)
        task = self._progress.tasks[self._tasks[phase]]
        # A phase of unknown length that was ended may continue beside a later one.
        known = done if total is None and task.total is not None else total
        self._progress.update(task.id, completed=done, total=known)
        if not stderr.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _INTERVAL
            of = f": {done:,}" if total is None else f": {done:,} of {total:,}"
            tell(phase if total is None and not done else phase + of, style=None)

    def _finish(self) -> None:
        """Ends the phases that have not said how many steps they take."""
        for task in self._progress.tasks:
            if task.total is None:
                self._progress.update(task.id, total=task.completed)
