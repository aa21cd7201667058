"""How a long job tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then with what is being done.

    The command line draws bars from it; `no_progress` ignores it.
    """

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Takes the phase's name, the steps done, and all steps, None when that is not known."""
        ...


def no_progress(phase: str, done: int, total: int | None) -> None:
    """Ignores what it is told."""
