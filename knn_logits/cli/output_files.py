"""Checks that output files can be written, before hours of work."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from knn_logits.errors import StorageError


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


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuses a file that cannot be written; leaves nothing there."""
    with writing(path):
        place = Path(path).absolute()
        if place.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        if place.exists():
            place.open("r+b").close()
            return
        if not place.parent.is_dir():
            raise FileNotFoundError(2, "its folder does not exist")
        with tempfile.TemporaryFile(dir=place.parent):
            pass
