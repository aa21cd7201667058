"""Recognises the encoding of a text file, and reads its characters.

UTF-8, and UTF-16 or UTF-32 with a byte order mark, are recognised with certainty. The optional
library `chardet` guesses any other encoding, unless the user names it.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from knn_logits.errors import ConfigError

CHUNK = 1 << 20
EXTRA = 'pip install "knn-logits[documents]"'
_MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LOOKED_AT = 1 << 16
# A guess with less confidence is worth little: the text is then probably Western with few accents.
_UNSURE = 0.1
_FEW_ACCENTS = 0.15
# A file counts as UTF-8 if it has so many UTF-8 characters for each byte that is not UTF-8.
_MOSTLY = 4


class UnreadableError(Exception):
    """Raised for bytes that are not text. The message says why, and what to do about it."""


@dataclass(frozen=True)
class Encoding:
    """The encoding of a file.

    Attributes:
        name: Python's name of the encoding.
        guessed: Whether the encoding is a guess, which can be wrong.
    """

    name: str
    guessed: bool = False


def check_encoding(name: str | None) -> str | None:
    """Checks an encoding that a user names. None means that it is to be recognised.

    Raises:
        ConfigError: when Python has no such encoding, or it is not an encoding of text.
    """
    if name is None or name.lower() == "auto":
        return None
    try:
        b"a".decode(name)
    except UnicodeError:
        pass  # in some encodings a single byte is not a character
    except (LookupError, ValueError):
        raise ConfigError(
            f"the encoding {name!r} is unknown; name one such as utf-8, latin-1, windows-1252, "
            "utf-16 or shift_jis, or leave --encoding out"
        ) from None
    return name


def recognised(stream: BinaryIO, given: str | None = None) -> Encoding:
    """Recognises the encoding of a stream by reading every byte, and then rewinds the stream.

    Args:
        stream: A stream of bytes that can be read again from the beginning.
        given: The encoding that the user named, if any.

    Raises:
        UnreadableError: when the stream is not text, or its encoding is not recognised.
    """
    head = stream.read(_LOOKED_AT)
    found = _marked(head)
    if found is None and given is not None:
        found = Encoding(given)
    if found is None:
        found = _without_mark(head, stream)
    if found.name != "utf-8" or given is not None:
        _check(stream, found)
    stream.seek(0)
    return found


def characters(stream: BinaryIO, encoding: Encoding) -> Iterator[str]:
    r"""Yields the text of a stream piece by piece. Line ends become `\n`."""
    decode = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder(encoding.name)("strict"), translate=True
    )
    first = True
    while chunk := stream.read(CHUNK):
        piece = decode.decode(chunk)
        yield piece.removeprefix("\ufeff") if first else piece
        first = first and not piece
    yield decode.decode(b"", final=True)


def _marked(head: bytes) -> Encoding | None:
    name = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    return None if name is None else Encoding(name)


def _without_mark(head: bytes, stream: BinaryIO) -> Encoding:
    if b"\0" in head:
        wide = _wide(head)
        if wide is None:
            raise UnreadableError("binary: it holds NUL bytes")
        return wide
    stream.seek(0)
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    place = several = 0
    try:
        while chunk := stream.read(CHUNK):
            if b"\0" in chunk:
                raise UnreadableError("binary: it holds NUL bytes")
            several += len(chunk) - len(decoder.decode(chunk))
            place += len(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise UnreadableError(
                "not UTF-8 text: it ends in the middle of a character, so it was cut off; get it "
                "again"
            ) from None
        # The decoder counts from the start of a character, which may lie in an earlier chunk.
        place += error.start - (len(error.object) - len(chunk))
        sample = error.object[max(0, error.start - _LOOKED_AT) : error.start + _LOOKED_AT]
        tried = sample.decode("utf-8", "replace")
        bad = tried.count("\ufffd")
        good = several + sum(one > "\x7f" for one in tried) - bad
        if good > _MOSTLY * bad:
            raise UnreadableError(
                f"not UTF-8 text, though most of it is: byte {place + 1:,} is not a "
                "character; repair it, or name the encoding with --encoding"
            ) from None
        return _guessed(sample)
    return Encoding("utf-8")


def _wide(head: bytes) -> Encoding | None:
    """Recognises UTF-16 without a byte order mark: in Latin text every other byte is NUL."""
    if len(head) < 4:
        return None
    for name, first in (("utf-16-le", 1), ("utf-16-be", 0)):
        nul, other = head[first::2].count(0), head[1 - first :: 2].count(0)
        if nul > 0.4 * len(head) / 2 and other == 0:
            return Encoding(name, guessed=True)
    return None


def _guessed(sample: bytes) -> Encoding:
    try:
        import chardet
    except ImportError:
        raise UnreadableError(
            f"not UTF-8 text: name its encoding, as in --encoding latin-1, or install what "
            f"recognises encodings: {EXTRA}"
        ) from None
    found = chardet.detect(sample, encoding_era=chardet.EncodingEra.ALL)
    if (found["confidence"] or 0.0) < _UNSURE:
        found = chardet.detect(sample, encoding_era=chardet.EncodingEra.MODERN_WEB)
        accents = sum(byte > 127 for byte in sample) / len(sample)
        if (found["confidence"] or 0.0) < _UNSURE and accents < _FEW_ACCENTS:
            found["encoding"] = found["encoding"] and "cp1252"
    name = found["encoding"]
    if name is None or b"\0" in sample:
        raise UnreadableError("binary: its bytes are not text in any known encoding")
    return Encoding(codecs.lookup(name).name, guessed=True)


def _check(stream: BinaryIO, encoding: Encoding) -> None:
    """Refuses a stream that is not text of an encoding, or has control characters of no text.

    Raises:
        UnreadableError: when the stream is refused.
    """
    stream.seek(0)
    read = 0
    try:
        for piece in characters(stream, encoding):
            if "\0" in piece:
                raise UnreadableError("binary: it holds NUL bytes")
            if any("\ud800" <= one <= "\udfff" for one in piece if not piece.isascii()):
                raise UnreadableError(f"not text in {encoding.name}: it holds half a character")
            read += len(piece)
    except UnicodeError:
        how = "recognised as" if encoding.guessed else "said to be"
        raise UnreadableError(
            f"not text in {encoding.name}, which it is {how}, after {read:,} characters; name its "
            "encoding with --encoding"
        ) from None
