"""The parts that parsers yield. Each module here reads a format from an open file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from knn_logits.corpus.documents import visible

_CONTROLS = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Begin:
    """The title of the document. It may be left out, and comes before any text."""

    title: str | None = None


class Text(NamedTuple):
    """The text of a document's next block, with the white space that follows it."""

    text: str
    kind: str = "p"  # see `Block`
    place: str = ""  # for a reader, such as `page 12`; empty if that of the block before
    fragment: str = ""  # the part after `#` that makes the file's uri lead to the place


@dataclass(frozen=True)
class Fields:
    """A row: its number from 1, or 0 for the only one, and the share of the file read so far."""

    fields: dict[str, object]
    number: int
    done: float


@dataclass(frozen=True)
class Left:
    """A part of the file, such as `page 3`, that is left out; damaged, or not of a kind read.

    Without the name of a part it is a note on the file.
    """

    where: str
    reason: str
    damaged: bool = True


Part: TypeAlias = Begin | Text | Fields | Left
# A parser takes an open file, for rows also their keys, or the lines of a text.
Parser: TypeAlias = Callable[..., Iterator[Part]]


def clean(text: str) -> str:
    """Removes control characters, halves of characters, and those that nobody sees."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
    return visible(_CONTROLS.sub("", text))
