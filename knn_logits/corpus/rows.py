"""Rows of a corpus, and the checks that tell why a value is not a row. No file is read."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from knn_logits.corpus.documents import Block
from knn_logits.printable import first_few, printable

TEXT_KEYS = ("text",)
PAIR_KEYS = ("source", "target")
# The most bytes of a row. JSON of a few characters a value takes twenty times as much memory.
LONGEST_ROW = 64 << 20
_MAX_NESTING = 100

Skip = Callable[[str, str], None]


class UnreadableError(Exception):
    """Raised for a file that is not read. The message says why, and what to do about it."""


@dataclass(frozen=True)
class Row:
    """One row of a source, whose fields are JSON values; the schema's keys are strings."""

    fields: dict[str, object]
    name: str  # for a row without an id, such as `guide/part.jsonl:12`
    where: str  # for a message, such as `corpus/guide/part.jsonl, line 12`
    blocks: Sequence[Block] = ()
    part: bool = False  # whether the row continues the document of the row before


@dataclass
class SourceFile:
    """A file to read. Its name is relative to the folder."""

    path: Path
    name: str
    size: int
    consumed: int = 0  # bytes on disk that were read so far

    @property
    def shown(self) -> str:
        return display_name(str(self.path))

    def row(self, fields: dict[str, object], number: int = 0, unit: str = "row") -> Row:
        """Makes a row of this file: the only one, or one with its number from 1."""
        if not number:
            return Row(fields, self.name, self.shown)
        return Row(fields, f"{self.name}:{number}", f"{self.shown}, {unit} {number}")


def display_name(path: str) -> str:
    """Returns `path` as one line, without control characters and bytes that are not UTF-8."""
    return printable(path).replace("\n", "\ufffd").replace("\t", "\ufffd")


def first_line(error: BaseException) -> str:
    """Returns the message of an exception, cut to one short line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return display_name((str(error).strip().splitlines() or [type(error).__name__])[0][:200])


def fields_of(value: Any, keys: tuple[str, ...]) -> dict[str, object]:
    """Returns the fields of a row, of which those of the keys are texts; a null is an empty one.

    Such fields of objects move to the top. A ValueError says why a value is not a row.
    """
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__}, not an object with fields")
    if keys == TEXT_KEYS and "text" not in value:
        match value:
            case {"question": str(question), "answer": str(answer), **rest}:
                value = {**rest, "text": f"{question}\n\n{answer}"}
    for key in keys:
        _lift(value, key)
        if key not in value:
            option = "text" if len(keys) == 1 else "source" if key == keys[0] else "target"
            names = first_few([display_name(name) for name in value]) or "none"
            raise ValueError(f'no field "{key}" among {names}; --{option}-field names a field')
        value[key] = "" if value[key] is None else value[key]
        if not isinstance(value[key], str):
            raise ValueError(f'"{key}" is a {type(value[key]).__name__}, not a string')
    if _nested_deeper(value, _MAX_NESTING):
        raise ValueError(f"nested more than {_MAX_NESTING} levels deep")
    return cast(dict[str, object], value)


def _lift(value: dict[str, Any], key: str) -> None:
    *path, last = key.split(".")
    if not path or key in value:
        return
    holder: Any = value
    for name in path:
        holder = holder.get(name, {}) if isinstance(holder, dict) else holder
    if holder is None:  # every field of a null is null
        value[key] = None
    elif isinstance(holder, dict) and last in holder:
        value[key] = holder.pop(last)
        if not value[path[0]]:  # the object had no other field
            del value[path[0]]


def _nested_deeper(value: object, levels: int) -> bool:
    # Python may read JSON near its limit of nesting, and fail to write it from a deeper stack.
    if not isinstance(value, (dict, list)):
        return False
    children = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_nested_deeper(child, levels - 1) for child in children)


def plain_values(values: Mapping[str, object]) -> dict[str, object]:
    """Returns the JSON values of fields: dates and decimals as text, bytes and NaN left out."""
    text = json.dumps(values, default=_written, skipkeys=True)
    plain = json.loads(text, parse_constant=lambda _: None)
    return {key: value for key, value in plain.items() if value is not None}


def _written(value: object) -> str | None:
    times = (datetime.date, datetime.time, datetime.timedelta)
    return str(value) if isinstance(value, (*times, decimal.Decimal, uuid.UUID)) else None
