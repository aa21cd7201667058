"""Opens files, packed or not, and reads the characters of text in the encoding that it has."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from knn_logits.corpus.documents import visible
from knn_logits.corpus.rows import UnreadableError, first_line

# A longer line is taken in parts.
_LONGEST_LINE = 1 << 20
EXTRA = 'pip install "knn-logits[documents]"'
# The most characters that a file may give: in any case, and for each of its bytes.
MOST_TEXT, MOST_TEXT_A_BYTE = 64 << 20, 300
_GZIP_MAGIC = b"\x1f\x8b"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SAMPLE = 1 << 16
# A guess with less confidence is worth little: the text is then probably Western with few accents.
_UNSURE, _FEW_ACCENTS = 0.1, 0.15
# A file counts as UTF-8 if it has this number of UTF-8 characters for each other byte.
_MOSTLY = 4
_NUL = "binary: it holds NUL bytes"


def most_text(size: int) -> int:
    """Returns the maximum number of characters that a file of `size` bytes may give."""
    return max(MOST_TEXT, MOST_TEXT_A_BYTE * size)


def too_much() -> UnreadableError:
    return UnreadableError(
        "it yields more text than a document of its size can contain, as in a zip bomb; split it "
        "if you trust it"
    )


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Opens a file for reading, and unpacks gzip as it is read."""
    with path.open("rb") as raw:
        packed = raw.peek(2).startswith(_GZIP_MAGIC)
        yield io.BufferedReader(_Unpacked(fileobj=raw)) if packed else raw


class _Unpacked(gzip.GzipFile):
    """The content of a gzip file. It refuses more text than a file of its size may give."""

    def readinto(self, buffer: Any) -> int:
        try:
            data = self.read1(len(buffer))  # without waiting for what is damaged
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableError(f"damaged gzip ({first_line(error)})") from None
        if self.tell() > most_text(os.fstat(self.fileno()).st_size):
            raise too_much()
        buffer[: len(data)] = data
        return len(data)


def lines_of(stream: Any, encoding: str) -> Iterator[str]:
    r"""Yields the lines of a text as they are seen, with `\n` as their end; long ones in parts."""
    text = io.TextIOWrapper(stream, encoding)
    try:
        while line := text.readline(_LONGEST_LINE):
            yield visible(line)
    finally:
        text.detach()


def decoded(data: bytes, name: str | None) -> str:
    """Returns the text of bytes in the encoding that they name, or that is recognised."""
    if name and not data.startswith(tuple(mark for mark, _ in _MARKS)):
        with contextlib.suppress(ValueError, LookupError):
            return visible(data.decode(name))
    return visible(data.decode(recognised(io.BytesIO(data))[0]))


def recognised(stream: Any) -> tuple[str, bool]:
    """Recognises an encoding by a mark or by all bytes; returns whether it is a guess, too."""
    head = stream.read(4)
    name = next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")
    stream.seek(0)
    try:
        for line in lines_of(stream, name):
            if "\0" in line:
                raise UnreadableError(_NUL)
        return name, False
    except UnicodeDecodeError as error:
        stream.seek(max(0, stream.tell() - _SAMPLE))
        return _guessed(stream.read(2 * _SAMPLE), error, name), True
    finally:
        stream.seek(0)


def _guessed(sample: bytes, error: UnicodeDecodeError, name: str) -> str:
    """Guesses the encoding of text that is not in the encoding `name`."""
    if b"\0" in sample and name == "utf-8":
        raise UnreadableError(_NUL)
    text = sample.decode(name, "replace")
    bad = text.count("\ufffd")
    mostly = sum(char > "\x7f" for char in text) - bad > _MOSTLY * bad
    if name != "utf-8" or mostly or error.reason == "unexpected end of data":
        raise UnreadableError(
            f"damaged: it is {name} text but for some bytes; download it again, or save it as UTF-8"
        ) from None
    try:
        import chardet
    except ImportError:
        raise UnreadableError(
            f"not UTF-8 text: save it as UTF-8, or install encoding detection: {EXTRA}"
        ) from None
    guess = chardet.detect(sample, encoding_era=chardet.EncodingEra.MODERN_WEB)
    if guess["encoding"] is None:
        raise UnreadableError("binary: its bytes are not text in any known encoding")
    accents = sum(byte > 127 for byte in sample) / len(sample)
    unsure = (guess["confidence"] or 0.0) < _UNSURE and accents < _FEW_ACCENTS
    return "cp1252" if unsure else codecs.lookup(guess["encoding"]).name
