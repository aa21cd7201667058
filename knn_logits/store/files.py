"""Writes files that appear whole or not at all, one writer at a time; nothing else writes.

A file is written with `write()`: a full disk answers that with an error, and a memory map with a
signal.
"""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock, Timeout

from knn_logits.arrays import Array
from knn_logits.errors import BusyError, DatastoreError, StorageError
from knn_logits.store.layout import LOCK, partial_name
from knn_logits.store.reading import hub_repo_of

# Each operation on the disk is a function, so that tests can make any of them fail.


def create(path: Path) -> IO[bytes]:
    """Opens a new file for writing."""
    return path.open("xb")


def sync(handle: int) -> None:
    """Makes what was written durable."""
    os.fsync(handle)


def rename(old: Path, new: Path) -> None:
    old.replace(new)


def unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def storage_error(path: Path, error: BaseException) -> StorageError:
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error)
    full = number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in reason
    advice = "free some space" if full else "check the disk and its permissions"
    return StorageError(f"{path} cannot be written: {reason}; {advice}, then run the command again")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing that replaces `path` once it is complete."""
    partial = path.with_name(partial_name(path.name))
    ours = (None, str(partial), str(path), str(path.parent))
    try:
        # Opening would follow a link in its place.
        unlink(partial)
        with create(partial) as file:
            yield file
            file.flush()
            sync(file.fileno())
        rename(partial, path)
    except BaseException as error:
        with suppress(OSError):
            unlink(partial)
        # Other errors are about other files, which the caller uses.
        if isinstance(error, OSError) and error.filename in ours:
            raise storage_error(path, error) from error
        raise
    _sync_folder(path.parent)


def delete(path: Path) -> None:
    try:
        unlink(path)
    except OSError as error:
        raise storage_error(path, error) from error


def _sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable, where the system can; the files are in place already."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            sync(handle)
        finally:
            os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def write_array(path: Path, array: Array) -> None:
    array = np.ascontiguousarray(array)
    with replacing(path) as file:
        file.write(array_header(array.dtype, array.shape))
        _write_data(file, array)


def array_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a .npy file, always 128 bytes, so that it can be written last."""
    header, descr = io.BytesIO(), np.lib.format.dtype_to_descr(dtype)
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


def write_arrays(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Writes a .safetensors file, whole or not at all; equal content gives equal bytes."""
    # The writer of safetensors leaves a file of another name where it is killed, and shuffles.
    # Arrays of wide numbers come first, so that each array is aligned and can be mapped.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    stored = {name: np.ascontiguousarray(arrays[name]) for name in order}
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name, array in stored.items():
        kind = array.dtype.kind.upper()
        dtype = "BOOL" if kind == "B" else f"{kind}{8 * array.dtype.itemsize}"
        first, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (first, end)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in stored.values():
            _write_data(file, array)


def _write_data(file: IO[bytes], array: Array) -> None:
    if array.size:
        file.write(array.reshape(-1).view(np.uint8).data)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other writers out of a folder. The system releases the lock when its holder dies."""
    repo, path = hub_repo_of(folder), folder / LOCK
    if repo is not None:
        raise DatastoreError(
            f"{folder} is a download of {repo} and cannot be changed: copy it to another folder "
            f"with `knn-logits pull {repo} --out FOLDER`"
        )
    if path.is_symlink():
        raise DatastoreError(f"{path} is a link, which is not allowed; delete it")
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"another process is writing to {folder}: wait for it to finish, or stop it"
        ) from error
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        yield
    finally:
        lock.release()


def cache_folder() -> Path:
    """The folder for files that can be made again: `KNN_LOGITS_CACHE`, or the user's cache."""
    folder = os.environ.get("KNN_LOGITS_CACHE")
    if folder:
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "knn-logits"
