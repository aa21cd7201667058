"""Reads files of a datastore without trusting them, and writes files whole or not at all.

Reading checks links, sizes, shapes and headers. A file is written with `write()`: a full disk
answers that with an error, and a memory map with a signal.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic import ValidationError

from knn_logits.arrays import Array
from knn_logits.errors import BusyError, DamagedError, DatastoreError, StorageError
from knn_logits.store.layout import LOCK, partial_name

HASH_CHUNK = 1 << 22
_MAGIC = b"\x93NUMPY\x01\x00"
_LARGEST_HEADER = 4096
_PARSING = Lock()


def regular_file(path: Path) -> os.stat_result:
    """The state of a regular file. Links are refused, but those of the Hub's cache to its blobs."""
    try:
        state = path.lstat()
        if stat.S_ISLNK(state.st_mode):
            snapshot = path.parent.resolve()
            blobs = snapshot.parent.parent / "blobs"
            if snapshot.parent.name != "snapshots" or path.resolve().parent != blobs:
                raise DamagedError(
                    f"{path} is a link to another location, which is not allowed; copy the file "
                    "instead"
                )
            state = path.stat()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DamagedError(f"{path} is missing ({reason}); rebuild the datastore") from error
    if not stat.S_ISREG(state.st_mode):
        raise DamagedError(f"{path} is not a regular file; rebuild the datastore")
    return state


def open_file(path: Path) -> BufferedReader:
    """Opens a regular file for reading. Opening a pipe would wait for a writer."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DamagedError(f"{path} is not a regular file; remove it")
    return open(handle, "rb")  # noqa: PTH123 (it is a number)


def hub_repo_of(folder: Path) -> str | None:
    """The "org/name" of a folder in the Hub's cache, which may lack files; None for others."""
    whole = folder.absolute()
    kind, _, repo = whole.parent.parent.name.partition("--")
    if whole.parent.name != "snapshots" or kind != "datasets" or "--" not in repo:
        return None
    return repo.replace("--", "/", 1)


def map_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Maps the arrays of a .safetensors file, read-only, and reads the texts beside them.

    safetensors itself would copy the arrays into memory.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as checked, open_file(path) as file:
            texts = dict(checked.metadata() or {})
            whole = np.asarray(np.memmap(file, np.uint8, mode="r"))
        first = 8 + int(whole[:8].view("<u8")[0])
        header = json.loads(whole[8:first].tobytes())
        header.pop("__metadata__", None)
        return {name: _view(whole[first:], **fields) for name, fields in header.items()}, texts
    except (SafetensorError, OSError, ValueError, TypeError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise DamagedError(f"{path} cannot be read: {reason}; rebuild it") from error


def _view(data: Array, *, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    """One array of a .safetensors file, as its header describes it."""
    first, last = data_offsets
    kind = np.dtype("?" if dtype == "BOOL" else f"<{dtype[0].lower()}{int(dtype[1:]) // 8}")
    array: Array = data[first:last].view(kind).reshape(shape)
    return array


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    arrays, texts = map_arrays(path)
    return {name: np.array(array) for name, array in arrays.items()}, texts


def array_facts(path: Path) -> tuple[str, tuple[int, ...], int]:
    """Reads the header of a .npy file: dtype, shape, and the offset of the data in bytes."""
    with open_file(path) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("not version 1.0 of the .npy format")
        try:
            # NumPy parses with `ast`, which fails now and then in several threads of Python 3.11.
            with _PARSING:
                shape, in_columns, dtype = np.lib.format.read_array_header_1_0(
                    file, max_header_size=_LARGEST_HEADER
                )
        except Exception as error:  # the parser fails in many ways
            reason = " ".join(str(error).split())
            raise ValueError(f"its header cannot be read ({reason[:100]})") from error
        if in_columns or dtype.kind not in "biuf" or min(shape, default=0) < 0:
            raise ValueError("its header cannot be read: it holds no rows of numbers")
        return str(dtype), shape, file.tell()


def map_array(path: Path, dtype: str, shape: tuple[int, ...]) -> Array:
    """Checks a .npy file and maps it into memory, read-only."""
    size = regular_file(path).st_size
    try:
        stored_dtype, stored_shape, offset = array_facts(path)
        if stored_shape != shape or stored_dtype != dtype:
            raise ValueError(f"holds {stored_dtype} {stored_shape}, expected {dtype} {shape}")
        expected = offset + int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        if size != expected:
            raise ValueError(f"has {size} bytes, expected {expected}")
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
    except (OSError, ValueError, OverflowError) as error:
        raise DamagedError(f"{path} is damaged: {error}; rebuild it") from error


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while chunk := file.read(HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def first_problem(error: Exception) -> str:
    """One line about an error, for which pydantic has several."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


# Writing

# Each operation on the disk is a function, so that tests can make any of them fail.


def create(path: Path) -> IO[bytes]:
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
    with replacing(path) as file:
        file.write(array_header(array.dtype, array.shape))
        write_data(file, array)


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
    stored = {name: arrays[name] for name in order}
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
            write_data(file, array)


def write_data(file: IO[bytes], array: Array) -> None:
    if array.size:
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


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
