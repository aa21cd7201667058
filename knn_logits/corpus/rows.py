"""Rows of a corpus, and the checks that tell why a value is not a row. No file is read."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from knn_logits.corpus.blocks import Block
from knn_logits.corpus.documents import type_name
from knn_logits.errors import CorpusError
from knn_logits.printable import printable

TEXT_KEYS = ("text",)
_ASKED = ("question", "answer")
PAIR_KEYS = ("source", "target")
# The most bytes of a row. JSON of a few characters a value takes twenty times as much memory.
LONGEST_ROW = 64 << 20
_MAX_NESTING = 100

Skip = Callable[[str, str], None]


class UnreadableError(Exception):
    """Raised for a file that is not read. The message says why, and what to do about it."""


@dataclass(frozen=True)
class Schema:
    """The fields and the encoding of the files of a corpus. None recognises the encoding."""

    # Fields that every row must have as strings: one text, or a source and a target.
    keys: tuple[str, ...] = TEXT_KEYS
    id: str = "id"
    title: str = "title"
    encoding: str | None = None

    @property
    def pairs(self) -> bool:
        return len(self.keys) > 1


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
    """A file to read. Its name is relative to the folder, and the size of a pipe is None."""

    path: Path
    name: str
    size: int | None
    consumed: int = 0  # bytes on disk that were read so far

    @property
    def shown(self) -> str:
        """The path as one printable line."""
        return display_name(str(self.path))

    def row(self, fields: dict[str, object], number: int = 0, unit: str = "line") -> Row:
        """Makes a row of this file: the only one, or one with its number from 1."""
        if not number:
            return Row(fields, self.name, self.shown)
        return Row(fields, f"{self.name}:{number}", f"{self.shown}, {unit} {number}")

    def advance(self, raw: BinaryIO) -> None:
        """Notes how far `raw`, which is this file opened, has been read."""
        if self.size is not None:
            self.consumed = min(raw.tell(), self.size)


def display_name(path: str) -> str:
    """Returns `path` as one line, without control characters and bytes that are not UTF-8."""
    return printable(path).replace("\n", "\ufffd").replace("\t", "\ufffd")


def first_line(error: BaseException) -> str:
    """Returns the message of an exception, cut to one short line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return display_name((str(error).strip().splitlines() or [type(error).__name__])[0][:200])


def listed(names: Iterable[str]) -> str:
    """Returns the first ten names for a message."""
    names = list(names)
    shown = ", ".join(display_name(name) for name in names[:10])
    return f"{shown}, ..." if len(names) > 10 else shown or "none"


def parse_row(text: str, keys: tuple[str, ...]) -> dict[str, object]:
    """Parses one line of JSON. A ValueError says what is wrong with it."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise ValueError(f"nested more than {_MAX_NESTING} levels deep") from None
    except ValueError as error:  # an integer has more digits than Python converts
        raise ValueError(f"not valid JSON ({str(error).partition(':')[0]})") from None
    value = lifted(value, keys)
    fault = fault_of(value, keys)
    if fault:
        raise ValueError(fault)
    return cast(dict[str, object], value)


def lifted(value: Any, keys: tuple[str, ...]) -> Any:
    """Moves the fields that keys such as `translation.en` name to the top of a row.

    A row with `question` and `answer` in place of `text` gets a text of both.
    """
    if keys == TEXT_KEYS and isinstance(value, dict) and "text" not in value:
        asked = [value.get(name) for name in _ASKED]
        texts = [part for part in asked if isinstance(part, str)]
        if len(texts) == len(_ASKED):
            rest = {name: field for name, field in value.items() if name not in _ASKED}
            return {**rest, "text": "\n\n".join(texts)}
    for key in keys:
        *path, last = key.split(".")
        if not path or not isinstance(value, dict) or key in value:
            continue
        holder: Any = value
        for name in path:
            holder = holder.get(name, {}) if isinstance(holder, dict) else holder
        if holder is None:  # every field of a null is null
            value[key] = None
        elif isinstance(holder, dict) and last in holder:
            value[key] = holder.pop(last)
            if not value[path[0]]:  # the object had no other field
                del value[path[0]]
    return value


def fault_of(value: object, keys: tuple[str, ...]) -> str | None:
    """Says why a value is not a row with these fields; None if it is one."""
    if not isinstance(value, dict):
        return f"{type_name(value)}, not a JSON object"
    for key in keys:
        if key not in value:
            return f'the object has no "{key}" ({field_option(key, keys)} names another field)'
        if not isinstance(value[key], str):
            return f'"{key}" is {type_name(value[key])}, not a string'
    if _nested_deeper(value, _MAX_NESTING):
        return f"nested more than {_MAX_NESTING} levels deep"
    return None


def field_option(key: str, keys: tuple[str, ...]) -> str:
    """Returns the option of the command line that names the field `key`."""
    return f"--{'text' if len(keys) == 1 else 'source' if key == keys[0] else 'target'}-field"


def _nested_deeper(value: object, levels: int) -> bool:
    # Python may read JSON near its limit of nesting, and fail to write it from a deeper stack.
    if isinstance(value, dict):
        children: Iterable[object] = value.values()
    elif isinstance(value, list):
        children = value
    else:
        return False
    return levels == 0 or any(_nested_deeper(child, levels - 1) for child in children)


def column_fields(
    values: Mapping[str, object], keys: tuple[str, ...], where: str
) -> dict[str, object]:
    """Makes the fields of a row from a table's columns. A null is an empty text, or left out."""
    texts = {key: "" if values[key] is None else values[key] for key in keys if key in values}
    fields = plain_values({k: value for k, value in values.items() if k not in keys}) | texts
    fault = fault_of(fields, keys)
    if fault:
        raise CorpusError(f"{where}: {fault}; fix or remove this row")
    return fields


def plain_values(values: Mapping[str, object]) -> dict[str, object]:
    """Returns the JSON values of fields, without those that have none."""
    plain = {key: _plain(value) for key, value in values.items()}
    return {key: value for key, value in plain.items() if value is not None}


def _plain(value: object) -> object:
    """Returns a JSON value: dates and decimals become text; bytes, images and NaN become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta, uuid.UUID)):
        return str(value)
    return None
