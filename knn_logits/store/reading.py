"""Reads files of a datastore without trusting them: it checks links, sizes, shapes and headers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError

HASH_CHUNK = 1 << 22
_MAGIC = b"\x93NUMPY\x01\x00"
_LARGEST_HEADER = 4096
_HEADER = re.compile(
    r"\{'descr': '([<>|][biuf][0-9]{1,2})', 'fortran_order': False, "
    r"'shape': \(((?:[0-9]{1,20}, )*(?:[0-9]{1,20},?)?)\), \}[ \n]*"
)
_NUMBER = re.compile("[0-9]+")
# The number formats of .safetensors files that indexes are stored in.
_NUMBERS = {"U8": "u1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4"}


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


class OpenArrays:
    """An open .safetensors file, whose arrays are read on demand."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self._path = path
        # safetensors raises `AttributeError` for number formats that numpy lacks.
        ordinary = (OSError, ValueError, TypeError, AttributeError, KeyError, MemoryError)
        self._errors = (SafetensorError, *ordinary)
        with self._readable():
            self._file: Any = safe_open(path, framework="numpy")
            # It stays open, so that these are the same bytes if the file is replaced.
            self._bytes = open_file(path)
        weakref.finalize(self, self._bytes.close)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            reason = " ".join(str(error).split())
            raise DamagedError(f"{self._path} cannot be read: {reason}; rebuild it") from error

    def read(self) -> dict[str, Array]:
        with self._readable():
            return {name: self._file.get_tensor(name) for name in self._file.keys()}  # noqa: SIM118

    def mapped(self) -> dict[str, Array]:
        """Every array by name, mapped read-only; safetensors would copy them into memory."""
        with self._readable():
            whole = np.asarray(np.memmap(self._bytes, np.uint8, mode="r"))
            first = 8 + int(whole[:8].view("<u8")[0])
            header = json.loads(whole[8:first].tobytes())
            header.pop("__metadata__", None)
            return {name: _view(whole[first:], **fields) for name, fields in header.items()}

    @property
    def metadata(self) -> dict[str, str]:
        """The texts that the writer stored beside the arrays."""
        return dict(self._file.metadata() or {})


def _view(data: Array, *, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    """One array of a .safetensors file, as its header describes it."""
    first, last = data_offsets
    array: Array = data[first:last].view(_NUMBERS[dtype]).reshape(shape)
    return array


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    file = OpenArrays(path)
    return file.read(), file.metadata


def array_facts(path: Path) -> tuple[str, tuple[int, ...], int]:
    """Reads the header of a .npy file: dtype, shape, and the offset of the data in bytes."""
    with open_file(path) as file:
        start = file.read(len(_MAGIC) + 2)
        length = int.from_bytes(start[len(_MAGIC) :], "little")
        if start[: len(_MAGIC)] != _MAGIC or length > _LARGEST_HEADER:
            raise ValueError("not version 1.0 of the .npy format")
        text = file.read(length).decode("latin1")
    # `ast` is not used here: in Python 3.11 it sometimes fails when several threads parse at once.
    header = _HEADER.fullmatch(text)
    if header is None:
        raise ValueError("its header cannot be read")
    try:
        dtype = np.dtype(header[1])
    except TypeError as error:
        raise ValueError(f"its header cannot be read ({error})") from error
    shape = tuple(int(number) for number in _NUMBER.findall(header[2]))
    return str(dtype), shape, len(start) + length


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
