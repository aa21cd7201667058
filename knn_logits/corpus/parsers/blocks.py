"""The results of parsers, which are blocks of text with their places, and shared checks."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_MOST_UNPACKED = 1 << 30
# Text and XML pack to between a fifth and a twentieth. A file that packs far better is hostile.
_LEAST_SUSPECT, _MOST_RATIO = 64 << 20, 200
_MOST_MEMBERS = 100_000
_LONGEST_HEADING = 80
_CONTROLS = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class RefusedError(Exception):
    """Raised for a file that is not read. The message says why, and what to do about it."""


@dataclass(frozen=True)
class Begin:
    """The start of a document in a file. A file with only one document may leave it out.

    Attributes:
        title: The document's title, if it has one.
        number: Number of the document in a file of several, from 1; 0 if the file is the document.
    """

    title: str | None = None
    number: int = 0


@dataclass(frozen=True)
class Block:
    """The next text of a document.

    Attributes:
        text: The text, with the white space that separates it from the next block.
        place: The name of its place for a reader, such as `page 12`; empty if it has none.
        fragment: The part after `#` that makes the file's uri lead to the place; may be empty.
        done: The share of the file that has been read, in [0, 1].
    """

    text: str
    place: str = ""
    fragment: str = ""
    done: float = 0.0


@dataclass(frozen=True)
class Left:
    """A part of the file that is left out.

    Attributes:
        where: The part, such as `page 3`.
        reason: Why the part is left out, and what to do.
        damaged: Whether the part is left out because it is damaged.
    """

    where: str
    reason: str
    damaged: bool = True


Part: TypeAlias = Begin | Block | Left
# A function that reads a file. Its second argument is the encoding that the user named.
Parser: TypeAlias = Callable[[Path, str | None], Iterator[Part]]


def clean(text: str) -> str:
    """Removes control characters and halves of characters."""
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " "))


def heading(text: str) -> str:
    """Makes a heading the name of a place."""
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST_HEADING else f"{text[: _LONGEST_HEADING - 1]}…"
    return f"“{text}”" if text else ""


def opened_zip(path: Path) -> zipfile.ZipFile:
    """Opens a document that is a zip archive, after a check of its unpacked size.

    Python reads no more of a member than the archive's directory says, so the check suffices.

    Raises:
        RefusedError: when the file is not a zip archive, is damaged or encrypted, or would fill the
            memory.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise RefusedError(f"damaged: it is not a zip archive ({error}); get it again") from None
    members = archive.infolist()
    size = sum(one.file_size for one in members)
    packed = max(1, sum(one.compress_size for one in members))
    if len(members) > _MOST_MEMBERS:
        raise RefusedError(
            f"it holds {len(members):,} files, which is too many for a document; save it anew"
        )
    if size > _MOST_UNPACKED or (size > _LEAST_SUSPECT and size > _MOST_RATIO * packed):
        raise RefusedError(
            f"its {packed:,} bytes would unpack to {size:,}, as with a zip bomb; save it anew if "
            "it is sound"
        )
    if any(one.flag_bits & 1 for one in members):
        raise RefusedError("encrypted: save it without a password")
    return archive


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Reads a file of a zip archive.

    Raises:
        RefusedError: when the file is missing or damaged.
    """
    try:
        return archive.read(name)
    except KeyError:
        raise RefusedError(f"damaged: it has no {name[:80]}; get it again") from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise RefusedError(f"damaged: {name[:80]} cannot be unpacked ({error})") from None
