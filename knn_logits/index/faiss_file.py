"""Reads FAISS's file of an IVFPQ index, which earlier systems wrote, without FAISS.

FAISS's own reader trusts a file: some damaged ones answer wrongly, and a file may name others on
the disk. Here every count is compared with the number of bytes, and `plain_arrays` checks the
arrays. A flipped bit within the codes is not found, since such files have no checksum.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError
from knn_logits.metrics import METRIC_OF_FAISS, Metric

_MOST_LISTS = 1 << 20
_MOST_DIM = 1 << 20
_FLAT = ("IxF2", "IxFI", "IxFl")


@dataclass
class FaissFile:
    """An index as plain arrays."""

    arrays: dict[str, Array]  # The arrays by name, as `plain.from_arrays` takes them
    factory: str  # The factory string of such an index
    metric: Metric  # How vectors are compared
    dim: int  # Length of a vector
    size: int  # Number of vectors
    nprobe: int  # Inverted lists visited for each query


def read_faiss_file(path: Path) -> FaissFile:
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        fields = _Fields(memoryview(data))
        parsed = _index(fields)
        if fields.left:
            raise ValueError(f"{fields.left} bytes too many")
        return parsed
    except (ValueError, struct.error, KeyError, OverflowError, MemoryError) as error:
        raise DamagedError(
            f"{path} cannot be read as an IVFPQ index ({error}); if the "
            "keys are available, build another index with --index"
        ) from error
    except OSError as error:
        raise DamagedError(
            f"{path} cannot be read ({error.strerror}); check its permissions"
        ) from error


class _Fields:
    """Reads one field of a file after another."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= self.left:
            raise ValueError("cut short")
        part = self._data[self._at : self._at + size]
        self._at += size
        return part

    def number(self, form: str) -> int:
        """Reads a number in a format of `struct`."""
        number: int = struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]
        return number

    def code(self) -> str:
        """Reads four letters that name what follows."""
        return bytes(self.take(4)).decode("latin1")

    def array(self, dtype: str, count: int) -> Array:
        kind = np.dtype(dtype)
        if count < 0 or count > self.left // kind.itemsize:
            raise ValueError("cut short")
        array: Array = np.frombuffer(self.take(count * kind.itemsize), kind).copy()
        return array

    def vector(self, dtype: str, unit: int = 1) -> Array:
        """Reads an array with its length, which counts in units of `unit` numbers."""
        return self.array(dtype, self.number("Q") * unit)


def _header(fields: _Fields) -> tuple[int, int, Metric]:
    dim, size = fields.number("i"), fields.number("q")
    fields.take(16)
    trained, metric = fields.number("B"), fields.number("i")
    if not 1 <= dim <= _MOST_DIM or size < 0 or trained != 1 or metric not in METRIC_OF_FAISS:
        raise ValueError("an untrained index, or an unknown metric")
    return dim, size, METRIC_OF_FAISS[metric]


def _index(fields: _Fields) -> FaissFile:
    kind = fields.code()
    if kind != "IwPQ":
        raise ValueError(f"its kind is {kind!r}")
    dim, size, metric = _header(fields)
    lists, nprobe = fields.number("Q"), fields.number("Q")
    if not 1 <= lists <= _MOST_LISTS:
        raise ValueError(f"{lists} lists")
    if fields.code() not in _FLAT:
        raise ValueError("its lists are found in another way than by a flat quantiser")
    centroids = _centroids(fields, dim, lists)
    if fields.number("B"):
        raise ValueError("it holds a direct map")
    fields.vector("<i8")
    arrays = {"centroids": centroids}
    name, code_size = _product(fields, dim, arrays)
    arrays |= _lists(fields, lists, code_size, size)
    factory = f"IVF{lists},{name}"
    return FaissFile(arrays, factory, metric, dim, size, min(max(1, nprobe), lists))


def _centroids(fields: _Fields, dim: int, lists: int) -> Array:
    if _header(fields)[:2] != (dim, lists):
        raise ValueError("its centroids are of another number or length")
    codes = fields.vector("u1", 4)
    if codes.size != lists * dim * 4:
        raise ValueError("its centroids are of another number or length")
    return codes


def _product(fields: _Fields, dim: int, arrays: dict[str, Array]) -> tuple[str, int]:
    residual, code_size = fields.number("B"), fields.number("Q")
    length, parts, bits = fields.number("Q"), fields.number("Q"), fields.number("Q")
    arrays["codebooks"] = fields.vector("<f4")
    if residual != 1 or length != dim or not 1 <= parts <= dim or not 1 <= bits <= 12:
        raise ValueError("a product quantiser of other vectors, or not of residuals")
    if code_size != (parts * bits + 7) // 8 or arrays["codebooks"].size != dim << bits:
        raise ValueError("a product quantiser whose parts do not fit")
    return f"PQ{parts}x{bits}", code_size


def _lists(fields: _Fields, lists: int, code_size: int, size: int) -> dict[str, Array]:
    if fields.code() != "ilar":
        raise ValueError("its lists are in another file")
    if (fields.number("Q"), fields.number("Q")) != (lists, code_size):
        raise ValueError("its lists are of another number or width")
    how, counts = fields.code(), fields.vector("<u8")
    if how == "sprs":
        pairs = counts.reshape(-1, 2)
        if len(pairs) and int(pairs[:, 0].max()) >= lists:
            raise ValueError("a list that is not there")
        counts = np.zeros(lists, "<u8")
        counts[pairs[:, 0]] = pairs[:, 1]
    elif how != "full":
        raise ValueError("its lists are stored in an unknown way")
    if size * (code_size + 8) > fields.left:
        raise ValueError("more entries than it has bytes for")
    # Each is bounded before they are summed, since a sum of large numbers can wrap around.
    if counts.shape != (lists,) or int(counts.max(initial=0)) > size:
        raise ValueError("the sizes of its lists")
    sizes = counts.astype(np.int64)
    if int(sizes.sum()) != size:
        raise ValueError("the sizes of its lists")
    ids = np.empty(size, np.int64)
    codes = np.empty((size, code_size), np.uint8)
    first = 0
    for count in sizes.tolist():
        last = first + count
        codes[first:last] = fields.array("u1", count * code_size).reshape(count, code_size)
        ids[first:last] = fields.array("<i8", count)
        first = last
    seen = np.zeros(size, bool)
    if size and (int(ids.min()) < 0 or int(ids.max()) >= size):
        raise ValueError("numbers of entries beyond their count")
    seen[ids] = True
    if not seen.all():
        raise ValueError("entries that are twice there, or not at all")
    return {"sizes": sizes, "ids": ids, "codes": codes}
