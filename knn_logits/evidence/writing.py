"""Writes a text to a file, a pipe or an open stream."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from knn_logits.errors import StorageError


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file. What stood there before stays whole if that fails, where the folder allows."""
    where = Path(path)
    try:
        for number in (1, 2):
            if _is_open_as(where, number):
                # Other programs write to it, too, each behind the text of the program before.
                with os.fdopen(os.dup(number), "w", encoding="utf-8") as stream:
                    stream.write(text)
                return
        if where.exists() and not where.is_file():
            where.write_text(text, encoding="utf-8")  # a pipe or a device
            return
        where = where.resolve()
        partial = where.with_name(f".{secrets.token_hex(8)}.partial")
        try:
            file = partial.open("xb")
        except PermissionError:
            where.write_text(text, encoding="utf-8")
            return
        try:
            with file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            if where.exists():
                shutil.copymode(where, partial)
            partial.replace(where)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(
            f"{where} cannot be written: {error.strerror or error}; free some space, or choose "
            "another location"
        ) from error


def _is_open_as(path: Path, number: int) -> bool:
    """Whether a path leads to what a file descriptor of this process has open."""
    try:
        return os.path.samestat(path.stat(), os.fstat(number))
    except OSError:
        return False
