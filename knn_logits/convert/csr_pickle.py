"""A pickled scipy CSR matrix of plain arrays, read without unpickling anything.

A pickle is a program that can call any function. Here the few instructions that such a matrix
needs are followed symbolically: names of classes stay names, arrays stay views of the file's bytes,
and whatever else occurs is refused. Nothing is imported, called, or copied.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knn_logits.errors import DamagedError
from knn_logits.neighbors import Array

_MOST_STEPS = 10_000
_MOST_TEXT = 1 << 16
_MATRICES = frozenset(
    f"scipy.sparse.{module}.{name}"
    for module in ("csr", "_csr")
    for name in ("csr_matrix", "csr_array")
)
_RECONSTRUCT = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
_FROM_BUFFER = ("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer")
_SCALAR = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
_KNOWN = {*_MATRICES, *_RECONSTRUCT, *_FROM_BUFFER, *_SCALAR, "numpy.ndarray", "numpy.dtype"}


class _Mark:
    """Where a group of values on the stack begins."""


@dataclass
class _Name:
    """A class or function, by name."""

    name: str


@dataclass
class _Made:
    """What a call would have made: the function, its arguments, and the state set afterwards."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_csr(path: Path) -> tuple[tuple[int, int], Array, Array]:
    """Reads the structure of a pickled CSR matrix.

    Args:
        path: The file.

    Returns:
        shape: Rows and columns.
        indptr: Integers [rows + 1], where the columns of each row begin in `indices`.
        indices: Integers [entries], a column each.

    Raises:
        DamagedError: when the file holds anything else.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _matrix(_Reader(memoryview(data)).run())
    except (ValueError, IndexError, KeyError, TypeError, struct.error, OverflowError) as error:
        raise DamagedError(
            f"{path} is no pickled CSR matrix of plain arrays ({error}); leave it out, and cluster "
            "again"
        ) from error
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror})") from error


def _matrix(made: Any) -> tuple[tuple[int, int], Array, Array]:
    if not isinstance(made, _Made) or made.name not in _MATRICES or made.arguments:
        raise ValueError("another object")
    state = made.state
    if not isinstance(state, dict):
        raise ValueError("a matrix without a state")
    rows, columns = (_integer(one) for one in state["_shape"])
    indptr, indices = _array(state["indptr"]), _array(state["indices"])
    if rows < 0 or columns < 0 or len(indptr) != rows + 1:
        raise ValueError("shape and row pointers differ")
    return (rows, columns), indptr.copy(), indices.copy()


def _integer(value: Any) -> int:
    if isinstance(value, _Made) and value.name in _SCALAR:
        dtype, content = value.arguments
        return int(np.frombuffer(content, _dtype(dtype), count=1)[0])
    if type(value) is not int:
        raise ValueError("a size that is no number")
    return value


def _array(made: Any) -> Array:
    """A one-dimensional array of integers, a view of the file."""
    if not isinstance(made, _Made):
        raise ValueError("no array")
    if made.name in _RECONSTRUCT:
        _, shape, dtype, fortran, content = made.state
    elif made.name in _FROM_BUFFER:
        content, dtype, shape, order = made.arguments
        fortran = order != "C"
    else:
        raise ValueError(f"{made.name} in the place of an array")
    kind = _dtype(dtype)
    if not isinstance(shape, tuple) or len(shape) != 1 or (fortran and fortran is not True):
        raise ValueError("an array of several dimensions")
    if not isinstance(content, memoryview) or len(content) != shape[0] * kind.itemsize:
        raise ValueError("an array of another size than it says")
    return np.frombuffer(content, kind)


def _dtype(made: Any) -> np.dtype[Any]:
    if not isinstance(made, _Made) or made.name != "numpy.dtype":
        raise ValueError("no dtype")
    name = made.arguments[0]
    order = made.state[1] if made.state is not None else "<"
    if name not in ("i4", "i8", "u4", "u8") or order not in ("<", "="):
        raise ValueError(f"numbers of the kind {order}{name}")
    return np.dtype(f"<{name}")


class _Reader:
    """Follows the instructions of protocols 3 to 5 that a matrix needs."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """The object that the pickle describes."""
        for _ in range(_MOST_STEPS):
            code = self._take(1)[0]
            if code == ord("."):
                if len(self._stack) != 1 or self._at != len(self._data):
                    raise ValueError("more than one object")
                return self._stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise ValueError(f"the instruction {bytes([code])!r}")
            step(self)
        raise ValueError("too many instructions")

    def _take(self, size: int) -> memoryview:
        if size < 0 or size > len(self._data) - self._at:
            raise ValueError("cut short")
        part = self._data[self._at : self._at + size]
        self._at += size
        return part

    def _number(self, form: str) -> int:
        found: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return found

    def _text(self, size: int) -> str:
        if size > _MOST_TEXT:
            raise ValueError("a long text")
        return bytes(self._take(size)).decode("utf-8")

    def _line(self) -> str:
        limit = min(len(self._data), self._at + 256)
        end = bytes(self._data[self._at : limit]).find(b"\n")
        if end < 0:
            raise ValueError("a long line")
        return str(bytes(self._take(end + 1))[:-1], "ascii")

    def push(self, value: Any) -> None:
        """Puts a value on the stack."""
        self._stack.append(value)

    def group(self) -> list[Any]:
        """Takes the values since the last mark."""
        place = max(i for i, one in enumerate(self._stack) if isinstance(one, _Mark))
        values = self._stack[place + 1 :]
        del self._stack[place:]
        return values

    def name(self, text: str) -> None:
        """A class or function, if it is one of a matrix."""
        if text not in _KNOWN:
            raise ValueError(f"it asks for {text}")
        self.push(_Name(text))

    def call(self) -> None:
        """Notes a call, and makes none."""
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise ValueError("a call of something else than a name")
        self.push(_Made(function.name, arguments))

    def build(self) -> None:
        """Notes the state of an object."""
        state, made = self._stack.pop(), self._stack[-1]
        if not isinstance(made, _Made) or made.state is not None:
            raise ValueError("a state of something else than an object")
        made.state = state

    def items(self, values: list[Any]) -> None:
        """Puts names and values into the dict below."""
        target = self._stack[-1]
        if type(target) is not dict or len(values) % 2:
            raise ValueError("items of something else than a dict")
        for name, value in zip(values[::2], values[1::2], strict=True):
            if type(name) is not str:
                raise ValueError("a name that is no text")
            target[name] = value

    def memo(self, place: int) -> None:
        """Keeps the topmost value for later."""
        self._memo[place] = self._stack[-1]


def _tuple(count: int) -> Any:
    def step(reader: _Reader) -> None:
        values = [reader._stack.pop() for _ in range(count)]
        reader.push(tuple(reversed(values)))

    return step


def _global(reader: _Reader) -> None:
    module = reader._line()
    reader.name(f"{module}.{reader._line()}")


def _stack_global(reader: _Reader) -> None:
    name, module = reader._stack.pop(), reader._stack.pop()
    if type(name) is not str or type(module) is not str:
        raise ValueError("a name that is no text")
    reader.name(f"{module}.{name}")


def _set_item(reader: _Reader) -> None:
    value, name = reader._stack.pop(), reader._stack.pop()
    reader.items([name, value])


def _protocol(reader: _Reader) -> None:
    if reader._take(1)[0] not in (3, 4, 5):
        raise ValueError("an unknown protocol")


def _long(reader: _Reader) -> None:
    content = bytes(reader._take(reader._take(1)[0]))
    if len(content) > 16:
        raise ValueError("a long number")
    reader.push(int.from_bytes(content, "little", signed=True))


_STEPS: dict[int, Any] = {
    ord(code): step
    for code, step in {
        "\x80": _protocol,
        "\x95": lambda r: r._take(8),  # a frame's length says nothing that matters here
        "(": lambda r: r.push(_Mark()),
        "N": lambda r: r.push(None),
        "\x88": lambda r: r.push(True),
        "\x89": lambda r: r.push(False),
        "K": lambda r: r.push(r._number("<B")),
        "M": lambda r: r.push(r._number("<H")),
        "J": lambda r: r.push(r._number("<i")),
        "\x8a": _long,
        "G": lambda r: r.push(struct.unpack(">d", r._take(8))[0]),
        "\x8c": lambda r: r.push(r._text(r._number("<B"))),
        "X": lambda r: r.push(r._text(r._number("<I"))),
        "C": lambda r: r.push(r._take(r._number("<B"))),
        "B": lambda r: r.push(r._take(r._number("<I"))),
        "\x8e": lambda r: r.push(r._take(r._number("<Q"))),
        "\x96": lambda r: r.push(r._take(r._number("<Q"))),
        "}": lambda r: r.push({}),
        ")": lambda r: r.push(()),
        "t": lambda r: r.push(tuple(r.group())),
        "\x85": _tuple(1),
        "\x86": _tuple(2),
        "\x87": _tuple(3),
        "u": lambda r: r.items(r.group()),
        "s": _set_item,
        "c": _global,
        "\x93": _stack_global,
        "R": lambda r: r.call(),
        "\x81": lambda r: r.call(),
        "b": lambda r: r.build(),
        "q": lambda r: r.memo(r._number("<B")),
        "r": lambda r: r.memo(r._number("<I")),
        "\x94": lambda r: r.memo(len(r._memo)),
        "h": lambda r: r.push(r._memo[r._number("<B")]),
        "j": lambda r: r.push(r._memo[r._number("<I")]),
    }.items()
}
