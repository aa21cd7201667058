"""What parsers give: blocks of text, each with its place; and the checks that several share."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_MOST_UNPACKED = 1 << 30
# Text and XML pack to a fifth or a twentieth; what packs better by far is made to.
_LEAST_SUSPECT, _MOST_RATIO = 64 << 20, 200
_MOST_MEMBERS = 100_000
_LONGEST_HEADING = 80
_CONTROLS = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class RefusedError(Exception):
    """A file that is not read; the message says why, and what to do about it."""


@dataclass(frozen=True)
class Begin:
    """A new document of the file; a file that has only one may leave it out.

    Attributes:
        title: its title, where it has one.
        number: of the document in a file of several, from 1; 0 where the file is the document.
    """

    title: str | None = None
    number: int = 0


@dataclass(frozen=True)
class Block:
    """The next text of a document.

    Attributes:
        text: with the white space that parts it from the next block.
        place: what a reader looks for, such as `page 12`; empty where there is no such thing.
        fragment: what makes the file's uri lead there; may be empty.
        done: how much of the file has been read, in [0, 1].
    """

    text: str
    place: str = ""
    fragment: str = ""
    done: float = 0.0


@dataclass(frozen=True)
class Left:
    """A part of the file that is left out.

    Attributes:
        where: the part, such as `page 3`.
        reason: why, and what to do.
        damaged: whether it should have been read.
    """

    where: str
    reason: str
    damaged: bool = True


Part: TypeAlias = Begin | Block | Left
# Reads a file; the second argument is the encoding that the user named.
Parser: TypeAlias = Callable[[Path, str | None], Iterator[Part]]


def clean(text: str) -> str:
    """Text without control characters and halves of characters."""
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " "))


def heading(text: str) -> str:
    """A heading as the name of a place."""
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST_HEADING else f"{text[: _LONGEST_HEADING - 1]}…"
    return f"“{text}”" if text else ""


def opened_zip(path: Path) -> zipfile.ZipFile:
    """A document that is a zip archive, once its size unpacked is known to be sane.

    Python reads no more of a member than the archive's directory says.

    Raises:
        RefusedError: when it is none, a damaged one, or one that was made to fill the memory.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise RefusedError(f"damaged: it is no zip archive ({error}); get it again") from None
    members = archive.infolist()
    size = sum(one.file_size for one in members)
    packed = max(1, sum(one.compress_size for one in members))
    if len(members) > _MOST_MEMBERS:
        raise RefusedError(f"it holds {len(members):,} files, which no document does")
    if size > _MOST_UNPACKED or (size > _LEAST_SUSPECT and size > _MOST_RATIO * packed):
        raise RefusedError(
            f"its {packed:,} bytes would unpack to {size:,}, as those of a zip bomb do"
        )
    if any(one.flag_bits & 1 for one in members):
        raise RefusedError("encrypted: save it without a password")
    return archive


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """A file of a zip archive.

    Raises:
        RefusedError: when it is missing or damaged.
    """
    try:
        return archive.read(name)
    except KeyError:
        raise RefusedError(f"damaged: it has no {name[:80]}; get it again") from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise RefusedError(f"damaged: {name[:80]} cannot be unpacked ({error})") from None
