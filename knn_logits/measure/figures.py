"""Tools for reports: matplotlib, which is loaded when a figure is drawn, and checks of files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from knn_logits.errors import MissingDependencyError, StorageError


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns the system's error into one line when something cannot be written."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"{path} cannot be written ({reason}); choose another location"
        ) from error


def check_writable(path: str | os.PathLike[str], *, folder: bool = True) -> None:
    """Refuses a path that cannot be written, before hours of work; leaves nothing there."""
    with writing(path):
        place = Path(path).absolute()
        if not folder:
            if place.is_dir():
                raise IsADirectoryError(21, "it is a folder")
            if place.exists():
                place.open("r+b").close()
                return
            place = place.parent
            if not place.is_dir():
                raise FileNotFoundError(2, "its folder does not exist")
        while not place.exists() and place != place.parent:
            place = place.parent
        with tempfile.TemporaryFile(dir=place):
            pass


def new_figure(width: float, height: float) -> Any:
    """Makes an empty matplotlib figure. It needs no display and changes no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            'plots need matplotlib: pip install "knn-logits[plots]"'
        ) from error
    return Figure(figsize=(width, height), dpi=120, layout="constrained")
