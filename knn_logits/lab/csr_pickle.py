"""Reads a pickled scipy CSR matrix of plain arrays without unpickling anything.

A pickle is a program that can call any function. `pickletools` lists its instructions, of which the
few that such a matrix needs are followed, with names for classes and views for arrays.
"""

from __future__ import annotations

import mmap
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError
from knn_logits.store.reading import open_file

_MOST_STEPS = 10_000
# Longer contents become a view of the file. Names and numbers are shorter.
_VIEWED = 1024
_LONGEST_IN_A_MESSAGE = 60
_MATRICES = frozenset(
    f"scipy.sparse.{module}.{name}"
    for module in ("csr", "_csr")
    for name in ("csr_matrix", "csr_array")
)
_RECONSTRUCT = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
_FROM_BUFFER = ("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer")
_SCALAR = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
_NAMES = {*_MATRICES, *_RECONSTRUCT, *_FROM_BUFFER, *_SCALAR, "numpy.ndarray", "numpy.dtype"}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_TEXTS = ("SHORT_BINUNICODE", "BINUNICODE")
_CONTENTS = ("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_STORE = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
_RECALL = ("BINGET", "LONG_BINGET")


@dataclass(repr=False)
class _Name:
    """A class or function, by name."""

    name: str


@dataclass(repr=False)
class _Call:
    """A call that is not run: the function, its arguments, and the later state of its result."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_csr(path: Path) -> tuple[tuple[int, int], Array, Array]:
    """Reads the structure of a pickled CSR matrix: its shape, `indptr` and `indices`."""
    try:
        with open_file(path) as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _matrix(_followed(memoryview(data)))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedError(
            f"{path} is not a pickled CSR matrix of plain arrays ({_short(str(error))}); remove "
            "it, and recompute the clusters"
        ) from error
    except OSError as error:
        raise DamagedError(
            f"{path} cannot be read ({error.strerror}); check its permissions, or remove it"
        ) from error


def _short(text: str) -> str:
    """Makes text from a file fit for one line of a message."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_IN_A_MESSAGE else f"{text[:_LONGEST_IN_A_MESSAGE]}..."


def _matrix(call: Any) -> tuple[tuple[int, int], Array, Array]:
    if not isinstance(call, _Call) or call.name not in _MATRICES or call.arguments:
        raise ValueError("another object")
    state = call.state
    if not isinstance(state, dict):
        raise ValueError("a matrix without a state")
    rows, columns = map(_integer, state["_shape"])
    indptr, indices = _array(state["indptr"]), _array(state["indices"])
    if rows < 0 or columns < 0 or len(indptr) != rows + 1:
        raise ValueError("shape and row pointers differ")
    return (rows, columns), indptr.copy(), indices.copy()


def _integer(value: Any) -> int:
    if isinstance(value, _Call) and value.name in _SCALAR:
        dtype, content = value.arguments
        return int(np.frombuffer(content, _dtype(dtype), count=1)[0])
    if type(value) is not int:
        raise ValueError("a size that is not a number")
    return value


def _array(call: Any) -> Array:
    """A one-dimensional array of integers, a view of the file."""
    if not isinstance(call, _Call):
        raise ValueError("something else than an array")
    if call.name in _RECONSTRUCT:
        _, shape, dtype, fortran, content = call.state
    elif call.name in _FROM_BUFFER:
        content, dtype, shape, order = call.arguments
        fortran = order != "C"
    else:
        raise ValueError("another object in the place of an array")
    kind = _dtype(dtype)
    if not isinstance(shape, tuple) or len(shape) != 1 or (fortran and fortran is not True):
        raise ValueError("an array of several dimensions")
    if not isinstance(content, memoryview) or len(content) != _integer(shape[0]) * kind.itemsize:
        raise ValueError("an array of another size than it says")
    return np.frombuffer(content, kind)


def _dtype(call: Any) -> np.dtype[Any]:
    if not isinstance(call, _Call) or call.name != "numpy.dtype":
        raise ValueError("no dtype")
    name = call.arguments[0]
    order = call.state[1] if call.state is not None else "<"
    if name not in ("i4", "i8", "u4", "u8") or order not in ("<", "="):
        # It is not shown, since it may be anything of any length.
        raise ValueError("numbers of another kind")
    return np.dtype(f"<{name}")


class _File:
    """A mapped file with the methods that `pickletools` reads. Long contents stay views."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes | memoryview:
        part = self._data[self._at : self._at + max(0, size)]
        self._at += len(part)
        return part if len(part) > _VIEWED else bytes(part)

    def readline(self) -> bytes:
        part = bytes(self._data[self._at : self._at + _VIEWED])
        part = part[: part.find(b"\n") + 1]
        self._at += len(part)
        return part


def _steps(data: memoryview) -> Iterator[tuple[str, Any]]:
    file: Any = _File(data)
    for number, (code, argument, _) in enumerate(pickletools.genops(file)):
        if number == _MOST_STEPS:
            raise ValueError("too many instructions")
        yield code.name, argument
    if file.tell() != len(data):
        raise ValueError("more than one object")


def _followed(data: memoryview) -> Any:
    stack: list[Any] = []
    # The positions on the stack where groups of values begin.
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since(place: int) -> list[Any]:
        values = stack[place:]
        del stack[place:]
        return values

    for step, argument in _steps(data):
        if step == "STOP":
            continue
        if step == "PROTO":
            if argument not in (3, 4, 5):
                raise ValueError("an unknown protocol")
        elif step == "FRAME":
            pass  # the length of a frame does not matter here
        elif step == "MARK":
            marks.append(len(stack))
        elif step in _CONSTANTS:
            stack.append(_CONSTANTS[step])
        elif step in _NUMBERS or step in _TEXTS:
            stack.append(argument)
        elif step in _CONTENTS:
            stack.append(memoryview(argument))
        elif step == "EMPTY_DICT":
            stack.append({})
        elif step == "TUPLE":
            stack.append(_tuple(since(marks.pop())))
        elif step in _TUPLES:
            if len(stack) < _TUPLES[step]:
                raise ValueError("a tuple of what is not there")
            stack.append(_tuple(since(len(stack) - _TUPLES[step])))
        elif step in ("SETITEM", "SETITEMS"):
            values = since(marks.pop() if step == "SETITEMS" else len(stack) - 2)
            _set_items(stack[-1], values)
        elif step == "GLOBAL":
            stack.append(_name(*argument.split(" ", 1)))
        elif step == "STACK_GLOBAL":
            name, module = stack.pop(), stack.pop()
            stack.append(_name(module, name))
        elif step in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            if not isinstance(function, _Name) or not isinstance(arguments, tuple):
                raise ValueError("a call of something else than a name")
            stack.append(_Call(function.name, arguments))
        elif step == "BUILD":
            state, call = stack.pop(), stack[-1]
            if not isinstance(call, _Call) or call.state is not None:
                raise ValueError("a state of something else than an object")
            call.state = state
        elif step in _STORE:
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif step in _RECALL:
            stack.append(memo[argument])
        else:
            raise ValueError(f"the instruction {step}")
    if len(stack) != 1:
        raise ValueError("more than one object")
    return stack.pop()


def _tuple(values: list[Any]) -> tuple[Any, ...]:
    """Makes a tuple whose tuples hold no tuples, so that nothing is nested deeply."""
    inner = (item for value in values if isinstance(value, tuple) for item in value)
    if any(isinstance(item, tuple) for item in inner):
        raise ValueError("tuples in tuples in tuples")
    return tuple(values)


def _name(module: Any, name: Any) -> _Name:
    if type(name) is not str or type(module) is not str:
        raise ValueError("a name that is no text")
    if f"{module}.{name}" not in _NAMES:
        raise ValueError(f"it asks for {module}.{name}")
    return _Name(f"{module}.{name}")


def _set_items(target: Any, values: list[Any]) -> None:
    if type(target) is not dict or len(values) % 2:
        raise ValueError("items of something else than a dict")
    for name, value in zip(values[::2], values[1::2], strict=True):
        if type(name) is not str:
            raise ValueError("a name that is no text")
        target[name] = value
