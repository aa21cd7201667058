"""Finds and reads the files of knn-transformers, knnlm and knn-models.

They are bare memory maps. Their sizes and number formats follow from the lengths of the files, and
from the numbers that each format would give.
"""

from __future__ import annotations

import mmap
import pickletools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import CorpusError, DamagedError, MismatchError
from knn_logits.store.files import open_file

_TRANSFORMERS = re.compile(r"dstore_(?P<type>.+)_(?P<size>\d+)_(?P<dim>\d+)_vals\.npy")
_VALUES = re.compile(r"(?P<stem>.*)(?P<word>vals|values)\.npy")
_INDEX = re.compile(r".*\.(indexed|index|faiss)|knn_index|faiss_index")
_ROWS = 1 << 20
# The widest format is tried first. Narrow numbers read as wide ones are far out of range, but wide
# numbers read as narrow ones may look right.
_VALUE_KINDS = ("<i8", "<i4", "<u2")
# The names in a pickled matrix that arrays follow. Such a pickle has some fifty instructions.
_ARRAYS = ("data", "indices", "indptr")
_MAX_INSTRUCTIONS = 10_000


@dataclass(frozen=True)
class LegacyFiles:
    """The files of one datastore of an earlier system."""

    values: Path  # a token for each entry
    keys: Path | None = None  # published datastores often lack them
    index: Path | None = None  # in FAISS's format
    clusters: Path | None = None  # a pickle
    entries: int | None = None  # like `dim`, of the file's name
    dim: int | None = None


def find_files(source: Path) -> LegacyFiles:
    """Finds the files of a datastore in its folder, or beside its file of values."""
    if source.is_file():
        values = source
        if _VALUES.fullmatch(values.name) is None:
            raise CorpusError(
                f"{source} is not a file of values: pass a folder, or the file *_vals.npy in it"
            )
    else:
        paths = sorted(source.iterdir()) if source.is_dir() else []
        paths = [path for path in paths if _VALUES.fullmatch(path.name)]
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths[:5]) or "none"
            raise CorpusError(
                f"{source} does not hold exactly one datastore of an earlier system (files of "
                f"values: {names}): pass the datastore's folder, or its file *vals.npy"
            )
        values = _file(paths[0])
    folder = values.parent
    parts = _TRANSFORMERS.fullmatch(values.name)
    if parts is not None:
        kind, entries, dim = parts["type"], int(parts["size"]), int(parts["dim"])
        members = sorted(folder.glob(f"members_{kind}_{entries}_{dim}_*.pkl"))
        return LegacyFiles(
            values,
            _optional(folder / f"dstore_{kind}_{entries}_{dim}_keys.npy"),
            _optional(folder / f"index_{kind}_{entries}_{dim}.indexed"),
            _file(members[0]) if members else None,
            entries,
            dim,
        )
    parts = _VALUES.fullmatch(values.name)
    assert parts is not None
    indexes = sorted(_file(path) for path in folder.iterdir() if _INDEX.fullmatch(path.name))
    if len(indexes) > 1:
        names = ", ".join(path.name for path in indexes[:5])
        raise CorpusError(f"{folder} holds several indexes ({names}): leave only one there")
    keys = _optional(folder / f"{parts['stem']}keys.npy")
    return LegacyFiles(values, keys, indexes[0] if indexes else None)


def _optional(path: Path) -> Path | None:
    return _file(path) if path.exists() else None


def _file(path: Path) -> Path:
    """Refuses a folder, a pipe or a device in place of a file. Reading one may never end."""
    if not path.is_file():
        raise CorpusError(f"{path} is not a regular file: remove it")
    return path


def read_values(files: LegacyFiles, dim: int, vocabulary: int, entries: int | None) -> Array:
    """Maps the values, integers [entries], in any format; `entries` is the index's size."""
    if files.dim not in (None, dim):
        raise MismatchError(
            f"{files.values} belongs to {files.dim}-dimensional keys, but the model's keys have "
            f"dimension {dim}: use the model that built it, or set the location of its keys with "
            "--key"
        )
    expected = entries if entries is not None else files.entries
    if entries is not None and files.entries not in (None, entries):
        raise MismatchError(
            f"the name of {files.values} implies {files.entries} entries, but the index has "
            f"{entries}: use the matching index"
        )
    size = files.values.stat().st_size
    for kind in _VALUE_KINDS:
        values = _mapped(files.values, kind)
        if not len(values) or expected not in (None, len(values)):
            continue
        if files.keys is not None and _key_width(files.keys, len(values), dim) is None:
            continue
        if int(values.min()) >= 0 and int(values.max()) < vocabulary:
            return values
    raise MismatchError(
        f"{files.values} ({size} bytes) does not contain tokens of this model, which has "
        f"{vocabulary} tokens and {dim}-dimensional keys: use the model that built it, or set the "
        "location of its keys with --key"
    )


def read_keys(path: Path, entries: int, dim: int) -> Array:
    """Maps the file of keys, float16 or float32 [entries, dim]."""
    width = _key_width(path, entries, dim)
    if width is None:
        raise MismatchError(
            f"{path} ({path.stat().st_size} bytes) does not contain {entries} {dim}-dimensional "
            "keys: use the model that built it"
        )
    return _mapped(path, f"<f{width}").reshape(entries, dim)


def key_parts(keys: Array, begin: int) -> Iterator[Array]:
    """Yields the keys in order from `begin` on, part by part."""
    for first in range(begin, len(keys), _ROWS // 16):
        part = np.asarray(keys[first : first + _ROWS // 16])
        if not np.isfinite(part).all():
            raise DamagedError(
                f"some keys after entry {first} are not finite, so the file is damaged or has a "
                "different number format: download it again"
            )
        yield part


def written_entries(keys: Array, values: Array) -> int:
    """Counts the entries up to the last written one. The files begin as zeros, and are filled."""
    last = len(keys)
    while last:
        first = max(0, last - _ROWS // 16)
        used = np.flatnonzero(np.asarray(keys[first:last]).any(axis=1) | (values[first:last] != 0))
        if len(used):
            return first + int(used[-1]) + 1
        last = first
    return 0


def _key_width(path: Path, entries: int, dim: int) -> int | None:
    """Returns the bytes of one number; None if the file does not hold this number of keys."""
    size = path.stat().st_size
    return next((width for width in (2, 4) if size == entries * dim * width), None)


def _mapped(path: Path, kind: str) -> Array:
    """Maps a file's numbers as a flat array; empty if they cannot have this format."""
    dtype: np.dtype[Any] = np.dtype(kind)
    count, rest = divmod(path.stat().st_size, dtype.itemsize)
    if rest or not count:
        return np.empty(0, dtype)
    with open_file(path) as file:
        return np.memmap(file, dtype, mode="r", shape=(count,))


def read_clusters(path: Path, entries: int) -> Array:
    """Reads the cluster of each entry, int32 [entries], from a pickled CSR matrix of scipy.

    A pickle is a program that can call any function, so it is not run: `pickletools` lists its
    instructions, and the matrix is the numbers in them.
    """
    try:
        contents = _pickled_arrays(path)
        width, rest = divmod(len(contents["indices"]), max(1, entries))
        if rest or width not in (4, 8):
            raise ValueError(f"it does not have {entries} entries")
        indptr, indices = (
            np.frombuffer(contents[name], f"<i{width}") for name in ("indptr", "indices")
        )
        # The numbers are compared and not subtracted, since differences of large ones wrap around.
        rising = bool((indptr[1:] >= indptr[:-1]).all())
        if not rising or (int(indptr[0]), int(indptr[-1])) != (0, entries):
            raise ValueError("its clusters have sizes that do not add up")
        if int(indices.min()) < 0 or int(indices.max()) >= entries:
            raise ValueError("it names entries that the datastore does not have")
        clusters = np.full(entries, -1, np.int32)
        clusters[indices] = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
        if int(clusters.min()) < 0:
            raise ValueError("it leaves entries without a cluster")
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise DamagedError(
            f"{path} is not a pickled matrix of clusters ({str(error)[:80]}); remove it, and "
            "recompute the clusters"
        ) from error
    return clusters


def _pickled_arrays(path: Path) -> dict[str, bytes]:
    """The longest content that follows each array's name in a pickle."""
    contents: dict[str, bytes] = {}
    name = ""
    with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        instructions: Any = pickletools.genops(mapped)  # type: ignore[arg-type]
        for _, argument, _ in islice(instructions, _MAX_INSTRUCTIONS):
            if isinstance(argument, str) and argument in _ARRAYS:
                name = argument
            elif isinstance(argument, bytes | bytearray):
                contents[name] = max(contents.get(name, b""), bytes(argument), key=len)
    return contents
