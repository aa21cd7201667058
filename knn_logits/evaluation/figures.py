"""What reports are made with: matplotlib, loaded when a figure is drawn, and files for people."""

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
    """Makes one line of what the system says when something cannot be written.

    Raises:
        StorageError: when it cannot.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"{path} cannot be written ({reason}); choose another place") from error


def check_writable(path: str | os.PathLike[str], *, folder: bool = True) -> None:
    """Refuses a place that cannot be written, before hours of work are done for it.

    Nothing is left there.

    Args:
        path: A folder that may have to be made, or a file.
        folder: Whether it is to be a folder.

    Raises:
        StorageError: when it cannot be written.
    """
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
    """An empty matplotlib figure; it needs no display and changes no global state.

    Args:
        width: In inches.
        height: In inches.

    Raises:
        MissingDependencyError: when matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            'plots need matplotlib: pip install "knn-logits[plots]"'
        ) from error
    return Figure(figsize=(width, height), dpi=120, layout="constrained")
