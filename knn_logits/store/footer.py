"""Reads the footer of a Parquet file without Arrow, which some damaged footers crash.

It reads only what `documents` needs to refuse a table before any memory is allocated for it: names
and types of the columns, rows, packing and sizes. The footer is in Thrift's compact protocol, which
is a struct of numbered fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MAGIC = b"PAR1"
_LARGEST = 4 << 20
_DEEPEST = 16
# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

PHYSICAL_TYPES = {2: "int64", 6: "string"}
PACKINGS = {0: "none", 1: "snappy"}

Struct = dict[int, Any]


@dataclass(frozen=True)
class Column:
    """A column of one group of rows."""

    type: str
    packing: str
    values: int
    unpacked: int


@dataclass(frozen=True)
class Footer:
    """What a file holds.

    Attributes:
        columns: The name and the type of each column, in order.
        groups: For each group of rows, the number of rows and the columns.
    """

    columns: list[tuple[str, str]]
    groups: list[tuple[int, list[Column]]]


def read_footer(file: Any, size: int) -> Footer:
    """Reads the footer.

    Args:
        file: The file, opened by Arrow.
        size: Size of the file, in bytes.

    Raises:
        ValueError: when there is no footer, or it is not of the kind that this package writes.
    """
    end = bytes(file.read_at(8, max(0, size - 8)))
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > min(size - 8, _LARGEST):
        raise ValueError("it has no footer")
    try:
        content = _Reader(bytes(file.read_at(length, size - 8 - length))).struct(0)
        return Footer(_columns(content[2]), [_group(one) for one in content[4]])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError("its footer cannot be read") from error


def _columns(schema: list[Struct]) -> list[tuple[str, str]]:
    if any(one.get(5) for one in schema[1:]):
        raise ValueError("its columns are nested")
    return [(one[4].decode(), PHYSICAL_TYPES.get(one[1], "another")) for one in schema[1:]]


def _group(group: Struct) -> tuple[int, list[Column]]:
    columns = []
    for chunk in group[1]:
        # The columns are in another file, or encrypted.
        if chunk.keys() & {1, 8, 9}:
            raise ValueError("its columns are not in this file")
        facts = chunk[3]
        packing = PACKINGS.get(facts[4], "another way")
        columns.append(
            Column(
                PHYSICAL_TYPES.get(facts[1], "another"),
                packing,
                _natural(facts[5]),
                _natural(facts[6]),
            )
        )
    return _natural(group[3]), columns


def _natural(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError("its footer has another value where a number must be")
    return number


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 63:
                raise ValueError("a number in its footer is too long")

    def _bytes(self, length: int) -> bytes:
        start = self._place
        if length > len(self._data) - start:
            raise ValueError("its footer is cut")
        self._place += length
        return self._data[start : self._place]

    def _size(self, number: int) -> int:
        # Each item takes a byte at least.
        if number > len(self._data) - self._place:
            raise ValueError("its footer is cut")
        return number

    def struct(self, depth: int) -> Struct:
        """The fields of a struct by number."""
        if depth > _DEEPEST:
            raise ValueError("its footer is nested too deeply")
        fields: Struct = {}
        last = 0
        while head := self._byte():
            step, kind = head >> 4, head & 0x0F
            last = last + step if step else _signed(self._varint())
            fields[last] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("its footer is nested too deeply")
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return _signed(self._varint())
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind in (_LIST, _SET):
            head = self._byte()
            size = self._size(head >> 4 if head >> 4 < 15 else self._varint())
            return [self._value(head & 0x0F, depth + 1) for _ in range(size)]
        if kind == _MAP:
            size = self._size(self._varint())
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._value(kinds >> 4, depth + 1)
                self._value(kinds & 0x0F, depth + 1)
            return None
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError("its footer cannot be read")


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)
