"""The files of earlier kNN-LM systems: which they are, and what is in them.

knn-transformers writes `dstore_TYPE_N_D_keys.npy`, `_vals.npy`, `index_TYPE_N_D.indexed` and
`members_*.pkl`; knnlm, knn-models and their relatives `keys.npy` and `vals.npy` (or `values.npy`)
with `faiss.index`. In spite of their names most are bare memory maps: sizes and number formats are
found from the lengths of the files and from what the numbers would be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.datastore.reading import array_facts, open_file
from knn_logits.errors import CorpusError, DamagedError, MismatchError

_TRANSFORMERS = re.compile(r"dstore_(?P<type>.+)_(?P<size>\d+)_(?P<dim>\d+)_vals\.npy")
_VALUES = re.compile(r"(?P<stem>.*)(?P<word>vals|values)\.npy")
_INDEX = re.compile(r".*\.(indexed|index|faiss)|knn_index|faiss_index")
_ROWS = 1 << 20
# Widest first: narrow numbers read as wide ones are far out of range, the other way round they
# are not.
_VALUE_KINDS = ("<i8", "<i4", "<u2")


@dataclass(frozen=True)
class LegacyFiles:
    """The files of one datastore of an earlier system.

    Attributes:
        values: A token for each entry.
        keys: A key for each entry; published datastores often lack them.
        index: Written by FAISS.
        clusters: Which entries belong to which cluster, a pickle.
        entries: As the name says, None where it says nothing.
        dim: As the name says, None where it says nothing.
    """

    values: Path
    keys: Path | None = None
    index: Path | None = None
    clusters: Path | None = None
    entries: int | None = None
    dim: int | None = None


def find_files(source: Path) -> LegacyFiles:
    """Finds the files of a datastore of an earlier system.

    Args:
        source: Its folder, or its file of values where a folder holds several.

    Raises:
        CorpusError: when there is none, or more than one.
    """
    if source.is_file():
        values = source
        if _VALUES.fullmatch(values.name) is None:
            raise CorpusError(f"{source} is no file of values: name a folder, or *_vals.npy in it")
    else:
        found = (
            sorted(one for one in source.iterdir() if _VALUES.fullmatch(one.name))
            if source.is_dir()
            else []
        )
        if len(found) != 1:
            names = ", ".join(one.name for one in found[:5]) or "none"
            raise CorpusError(
                f"{source} holds not one datastore of an earlier system (values: {names}): name "
                "its folder, or its file *vals.npy"
            )
        values = _file(found[0])
    folder = values.parent
    named = _TRANSFORMERS.fullmatch(values.name)
    if named is not None:
        kind, entries, dim = named["type"], int(named["size"]), int(named["dim"])
        members = sorted(folder.glob(f"members_{kind}_{entries}_{dim}_*.pkl"))
        return LegacyFiles(
            values,
            _there(folder / f"dstore_{kind}_{entries}_{dim}_keys.npy"),
            _there(folder / f"index_{kind}_{entries}_{dim}.indexed"),
            _file(members[0]) if members else None,
            entries,
            dim,
        )
    parts = _VALUES.fullmatch(values.name)
    assert parts is not None
    indexes = sorted(_file(one) for one in folder.iterdir() if _INDEX.fullmatch(one.name))
    if len(indexes) > 1:
        names = ", ".join(one.name for one in indexes[:5])
        raise CorpusError(f"{folder} holds several indexes ({names}): leave one there")
    keys = _there(folder / f"{parts['stem']}keys.npy")
    return LegacyFiles(values, keys, indexes[0] if indexes else None)


def _there(path: Path) -> Path | None:
    return _file(path) if path.exists() else None


def _file(path: Path) -> Path:
    """Refuses a folder, a pipe or a device by the name of a file: reading one may never end."""
    if not path.is_file():
        raise CorpusError(f"{path} is no file, but a folder, a pipe or a device: take it away")
    return path


def read_values(files: LegacyFiles, dim: int, vocabulary: int, entries: int | None) -> Array:
    """Maps the values, in whichever number format they are.

    Args:
        files: Where they are.
        dim: Length of a key of the model.
        vocabulary: Tokens that the model knows.
        entries: How many there are, where it is known from the index.

    Returns:
        Integers [entries]; values of 16 bits that went below 0 are brought back.

    Raises:
        MismatchError: when they are not of this model.
    """
    if files.dim not in (None, dim):
        raise MismatchError(
            f"{files.values} belongs to keys of {files.dim} numbers, the model's have {dim}: name "
            "the model that built it, and --key for another place in it"
        )
    known = entries if entries is not None else files.entries
    if entries is not None and files.entries not in (None, entries):
        raise MismatchError(f"{files.values} is named after {files.entries} entries, not {entries}")
    size = files.values.stat().st_size
    for kind in _VALUE_KINDS:
        found = _mapped(files.values, kind)
        if found is None or known not in (None, len(found)):
            continue
        if files.keys is not None and _key_width(files.keys, len(found), dim) is None:
            continue
        if len(found) and _within(found, vocabulary):
            return found
    raise MismatchError(
        f"{files.values} ({size} bytes) holds no tokens of this model (it knows {vocabulary}, its "
        f"keys have {dim} numbers): name the model that built it, and --key for another place in it"
    )


def _within(values: Array, vocabulary: int) -> bool:
    return all(
        int(part.min()) >= 0 and int(part.max()) < vocabulary
        for first in range(0, len(values), _ROWS)
        if len(part := values[first : first + _ROWS])
    )


def read_keys(path: Path, entries: int, dim: int) -> Array:
    """Maps the keys.

    Returns:
        float16 or float32 [entries, dim].

    Raises:
        MismatchError: when they are of another number or length.
    """
    width = _key_width(path, entries, dim)
    if width is None:
        raise MismatchError(
            f"{path} ({path.stat().st_size} bytes) holds no {entries} keys of {dim} numbers: name "
            "the model that built it"
        )
    found = _mapped(path, f"<f{width}")
    assert found is not None
    return found.reshape(entries, dim)


def key_parts(keys: Array) -> Iterator[Array]:
    """The keys in order, a part at a time.

    Raises:
        DamagedError: when one is not finite.
    """
    for first in range(0, len(keys), _ROWS // 16):
        part = np.asarray(keys[first : first + _ROWS // 16])
        if not np.isfinite(part).all():
            raise DamagedError(
                f"keys of the entries from {first} on are not finite: the file is damaged, or of "
                "another number format"
            )
        yield part


def written_entries(keys: Array, values: Array) -> int:
    """Entries up to the last that was written: files are made full of zeros, then filled."""
    last = len(keys)
    while last:
        first = max(0, last - _ROWS // 16)
        used = np.flatnonzero(np.asarray(keys[first:last]).any(axis=1) | (values[first:last] != 0))
        if len(used):
            return first + int(used[-1]) + 1
        last = first
    return 0


def _key_width(path: Path, entries: int, dim: int) -> int | None:
    """Bytes of a number, None when the file does not hold so many keys."""
    facts = _npy(path)
    if facts is not None:
        dtype, shape, _ = facts
        same = shape == (entries, dim) and dtype in ("float16", "float32")
        return np.dtype(dtype).itemsize if same else None
    size = path.stat().st_size
    return next((width for width in (2, 4) if size == entries * dim * width), None)


def _npy(path: Path) -> tuple[str, tuple[int, ...], int] | None:
    """What the header of a .npy file says, None for a bare memory map."""
    try:
        return array_facts(path)
    except (ValueError, OSError):
        return None


def _mapped(path: Path, kind: str) -> Array | None:
    """A file's numbers, flat, None when their format cannot be this one."""
    facts, offset = _npy(path), 0
    dtype: np.dtype[Any] = np.dtype(kind)
    if facts is not None:
        offset = facts[2]
        if np.dtype(facts[0]).newbyteorder("<") not in (dtype, np.dtype(kind.replace("u", "i"))):
            return None
    size = path.stat().st_size - offset
    if size <= 0 or size % dtype.itemsize:
        return None
    with open_file(path) as file:
        shape = (size // dtype.itemsize,)
        return np.memmap(file, dtype, mode="r", offset=offset, shape=shape)
