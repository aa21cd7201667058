"""Refuses a Parquet table that `documents` cannot have written, before Arrow reads its footer.

A few bytes could stand for billions of rows, and Arrow ends the process over some damaged footers.
Arrow passes over fields of an unexpected type (Thrift's compact protocol). So that both read the
same, fields must ascend, and those of the table below must have its types.
"""

from __future__ import annotations

from typing import Any

_MAGIC = b"PAR1"
_LARGEST = 4 << 20
_LAST_FIELD = 1000
# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

Struct = dict[int, Any]
# The fields of each struct: a type, a list of a type, or another struct.
_NO_FIELDS: Struct = {}
_PAIR: Struct = {1: _BINARY, 2: _BINARY}
_COLUMN: Struct = {
    **dict.fromkeys((1, 2, 3, 5, 6, 7, 8, 9), _I32),
    4: _BINARY,
    10: {1: _NO_FIELDS, 3: _NO_FIELDS, 10: {1: _BYTE, 2: _TRUE}},
}
_STATISTICS: Struct = {**dict.fromkeys((1, 2, 5, 6), _BINARY), 3: _I64, 4: _I64, 7: _TRUE, 8: _TRUE}
_FACTS: Struct = {
    **dict.fromkeys((5, 6, 7, 9, 10, 11, 14), _I64),
    **dict.fromkeys((1, 4, 15), _I32),
    2: [_I32],
    3: [_BINARY],
    8: [_PAIR],
    12: _STATISTICS,
    13: [dict.fromkeys((1, 2, 3), _I32)],
    16: {1: _I64, 2: [_I64], 3: [_I64]},
}
# A chunk has no path of another file, and no encryption.
_CHUNK: Struct = {1: None, 2: _I64, 3: _FACTS, 4: _I64, 5: _I32, 6: _I64, 7: _I32, 9: None}
_GROUP: Struct = {1: [_CHUNK], 2: _I64, 3: _I64, 5: _I64, 6: _I64, 7: _I16}
_FOOTER: Struct = {
    1: _I32,
    2: [_COLUMN],
    3: _I64,
    4: [_GROUP],
    5: [_PAIR],
    6: _BINARY,
    7: [{1: _NO_FIELDS}],
}
_PHYSICAL_TYPES = {"int64": 2, "string": 6}
# No compression, and snappy, which unpacks a byte to fewer bytes than `_MOST_UNPACKED`.
_COMPRESSIONS = (0, 1)
_MOST_UNPACKED = 32


def check_footer(file: Any, columns: list[tuple[str, str]], rows: int) -> None:
    """Refuses a table of other columns or rows, or one that can unpack to more than its size."""
    size = file.size()
    end = bytes(file.read_at(8, max(0, size - 8)))
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > min(size - 8, _LARGEST):
        raise ValueError("it has no footer")
    try:
        footer = _Reader(bytes(file.read_at(length, size - 8 - length))).struct(_FOOTER)
        schema = [(column[4].decode(), column.get(1)) for column in footer[2][1:]]
        groups = [(group[3], [chunk[3] for chunk in group[1]]) for group in footer[4]]
        chunks = [chunk for _, group in groups for chunk in group]
        sizes = [chunk[6] for chunk in chunks]
    except (KeyError, IndexError) as error:
        raise ValueError("its footer cannot be read") from error
    types = [_PHYSICAL_TYPES[kind] for _, kind in columns]
    if any(column.get(5) for column in footer[2][1:]):
        raise ValueError("its columns are nested")
    if schema != [(name, kind) for (name, _), kind in zip(columns, types, strict=True)]:
        raise ValueError("columns are missing, or of another type")
    if any(number < 0 for number in (*(rows for rows, _ in groups), *sizes)):
        raise ValueError("its footer has a negative number")
    if sum(number for number, _ in groups) != rows:
        raise ValueError(f"the manifest says {rows} documents")
    for number, group in groups:
        if [chunk.get(1) for chunk in group] != types:
            raise ValueError("columns of other types")
        if any(chunk.get(5) != number for chunk in group):
            raise ValueError("columns of other lengths")
    if any(chunk.get(4) not in _COMPRESSIONS for chunk in chunks):
        raise ValueError("columns packed in a way that can grow without bound")
    if sum(sizes) > _MOST_UNPACKED * size:
        raise ValueError(f"{size} bytes that stand for {sum(sizes)}")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def _bytes(self, length: int) -> bytes:
        start, self._place = self._place, self._place + length
        if self._place > len(self._data):
            raise ValueError("its footer is cut")
        return self._data[start : self._place]

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError("a number in its footer is too long")

    def _signed(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def struct(self, types: Struct) -> Struct:
        fields: Struct = {}
        last = 0
        while head := self._byte():
            kind = _TRUE if head & 0x0F == _FALSE else head & 0x0F
            number = last + (head >> 4) if head >> 4 else self._signed()
            if not last < number <= _LAST_FIELD:
                raise ValueError("the fields of its footer do not ascend")
            last, expected = number, types.get(number, kind)
            if kind != _kind(expected):
                raise ValueError(f"its footer has a field {number} of another type")
            fields[number] = None if kind == _TRUE else self._value(expected)
        return fields

    def _value(self, expected: Any) -> Any:
        if isinstance(expected, dict):
            return self.struct(expected)
        if isinstance(expected, list):
            head = self._byte()
            size = self._varint() if head >> 4 == 15 else head >> 4
            # Each item takes a byte at least.
            if size > len(self._data) - self._place or (size and head & 0x0F != _kind(expected[0])):
                raise ValueError("its footer has a list of another type or length")
            return [self._value(expected[0]) for _ in range(size)]
        if expected in (_I16, _I32, _I64):
            return self._signed()
        if expected == _BYTE:
            return self._byte()
        if expected == _DOUBLE:
            return self._bytes(8)
        if expected == _BINARY:
            return self._bytes(self._varint())
        # A struct or a list that is not of the table.
        raise ValueError("its footer cannot be read")


def _kind(expected: Any) -> Any:
    if isinstance(expected, dict):
        return _STRUCT
    return _LIST if isinstance(expected, list) else expected
