"""Files that appear whole or not at all, and the arrays in them. The only module that writes.

A file is written under a partial name, synced, renamed, and its folder synced. Plain `write()`
instead of a memory map, because a full disk answers it with an error instead of a signal.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from knn_logits.datastore.layout import partial_name
from knn_logits.errors import DamagedError, DatastoreError
from knn_logits.neighbors import Array

_HEADER_BYTES = 128
_HASH_CHUNK = 1 << 22


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing that takes `path`'s place once it is whole.

    Raises:
        DatastoreError: when the disk is full or the folder cannot be written.
    """
    partial = path.with_name(partial_name(path.name))
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        if error.filename not in (None, str(partial), str(path), str(path.parent)):
            raise  # about a file of the caller's
        raise DatastoreError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose "
            "another folder, then run the command again"
        ) from error


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a small file, whole or not at all."""
    with replacing(path) as file:
        file.write(content)


def write_array(path: Path, array: Array) -> None:
    """Writes one .npy file, whole or not at all."""
    with replacing(path) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0))


def array_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a .npy file, always 128 bytes, so that it can be written last."""
    text = repr({"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False})
    text = f"{text[:-1]}, 'shape': {shape!r}, }}"
    body = text.encode("latin1").ljust(_HEADER_BYTES - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def write_arrays(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Writes a .safetensors file, whole or not at all."""
    stage_arrays(path, arrays, metadata)
    put_in_place([path])


def put_in_place(paths: Iterable[Path]) -> None:
    """Renames staged files to what they are called when whole."""
    for path in paths:
        path.with_name(partial_name(path.name)).replace(path)
        sync_folder(path.parent)


def stage_arrays(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> Path:
    """Writes a .safetensors file under its partial name, for `put_in_place`.

    Returns:
        The partial file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    partial = path.with_name(partial_name(path.name))
    try:
        # safetensors writes for the owner alone; this file is as readable as its neighbors.
        partial.touch()
        mode = partial.stat().st_mode
        save_file(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            partial,
            metadata=dict(metadata),
        )
        partial.chmod(mode)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise DatastoreError(
            f"cannot write {path}: {reason}; free some space, then run again"
        ) from error
    return partial


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Reads a .safetensors file: its arrays and its metadata.

    Raises:
        DamagedError: when it is none.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(  # noqa: SIM118
                file.metadata() or {}
            )
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedError(f"{path} cannot be read: {error}; build it again") from error


def map_array(path: Path, dtype: str, shape: tuple[int, ...]) -> Array:
    """Maps a .npy file into memory, read-only, once it is what it should be.

    Raises:
        DamagedError: when the file is missing or has another dtype, shape or size.
    """
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("not version 1.0 of the format")
            found_shape, fortran, found_dtype = np.lib.format.read_array_header_1_0(file)
            offset = file.tell()
        if found_shape != shape or found_dtype != np.dtype(dtype) or fortran:
            raise ValueError(f"holds {found_dtype} {found_shape}, expected {dtype} {shape}")
        expected = offset + int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        if path.stat().st_size != expected:
            raise ValueError(f"has {path.stat().st_size} bytes, expected {expected}")
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path} is damaged: {error}; build it again") from error


def sha256(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
