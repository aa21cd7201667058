"""The encoding of plain text, and its characters."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from knn_logits.corpus.documents import visible
from knn_logits.corpus.rows import UnreadableError
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
_SAMPLE = 1 << 16
# A guess with less confidence is worth little: the text is then probably Western with few accents.
_UNSURE, _FEW_ACCENTS = 0.1, 0.15
# A file counts as UTF-8 if it has this number of UTF-8 characters for each other byte.
_MOSTLY = 4
_NUL = "binary: it holds NUL bytes"


@dataclass(frozen=True)
class Encoding:
    """Python's name of a file's encoding, and whether it is a guess, which can be wrong."""

    name: str
    guessed: bool = False


def check_encoding(name: str | None) -> str | None:
    """Refuses an encoding that Python lacks. None means that it is to be recognised."""
    if name is None or name.lower() == "auto":
        return None
    try:
        b"a".decode(name)
    except UnicodeError:
        pass  # in some encodings a single byte is not a character
    except (LookupError, ValueError):
        raise ConfigError(
            f"the encoding {name!r} is unknown; use for example utf-8, latin-1, windows-1252, "
            "utf-16 or shift_jis, or omit --encoding"
        ) from None
    return name


def recognised(stream: BinaryIO, encoding_name: str | None = None) -> Encoding:
    """Recognises an encoding from all bytes: a mark, else `encoding_name`, else a guess."""
    head = stream.read(_SAMPLE)
    mark = next((name for mark, name in _MARKS if head.startswith(mark)), encoding_name)
    encoding = Encoding(mark) if mark is not None else _without_mark(head, stream)
    if encoding.name != "utf-8" or encoding.guessed or encoding_name is not None:
        _check(stream, encoding)
    stream.seek(0)
    return encoding


def characters(stream: BinaryIO, encoding: str | None) -> Iterator[str]:
    r"""Yields the text of a stream piece by piece, as it is seen. Line ends become `\n`."""
    decode = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder(encoding or "utf-8")("strict"), translate=True
    )
    while chunk := stream.read(CHUNK):
        yield visible(decode.decode(chunk))
    yield visible(decode.decode(b"", final=True))


def _without_mark(head: bytes, stream: BinaryIO) -> Encoding:
    if b"\0" in head:
        # In Latin text without a mark, every other byte of UTF-16 is NUL.
        for name, first in (("utf-16-le", 1), ("utf-16-be", 0)):
            nul, other = head[first::2].count(0), head[1 - first :: 2].count(0)
            if len(head) >= 4 and nul > 0.4 * len(head) / 2 and other == 0:
                return Encoding(name, guessed=True)
        raise UnreadableError(_NUL)
    stream.seek(0)
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    position = wide = 0
    try:
        while chunk := stream.read(CHUNK):
            if b"\0" in chunk:
                raise UnreadableError(_NUL)
            wide += len(chunk) - len(decoder.decode(chunk))
            position += len(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise UnreadableError(
                "not UTF-8 text: it ends in the middle of a character, so it was truncated; "
                "download it again"
            ) from None
        # The decoder counts from the start of a character, which may lie in an earlier chunk.
        position += error.start - (len(error.object) - len(chunk))
        sample = error.object[max(0, error.start - _SAMPLE) : error.start + _SAMPLE]
        decoded = sample.decode("utf-8", "replace")
        bad = decoded.count("\ufffd")
        if wide + sum(char > "\x7f" for char in decoded) - bad > _MOSTLY * bad:
            raise UnreadableError(
                f"not UTF-8 text, though most of it is: byte {position + 1:,} is not valid; "
                "repair it, or set the encoding with --encoding"
            ) from None
        return _guessed(sample)
    return Encoding("utf-8")


def _guessed(sample: bytes) -> Encoding:
    try:
        import chardet
    except ImportError:
        raise UnreadableError(
            "not UTF-8 text: set its encoding, as in --encoding latin-1, or install encoding "
            f"detection: {EXTRA}"
        ) from None
    guess = chardet.detect(sample, encoding_era=chardet.EncodingEra.ALL)
    if (guess["confidence"] or 0.0) < _UNSURE:
        guess = chardet.detect(sample, encoding_era=chardet.EncodingEra.MODERN_WEB)
        accents = sum(byte > 127 for byte in sample) / len(sample)
        if (guess["confidence"] or 0.0) < _UNSURE and accents < _FEW_ACCENTS:
            guess["encoding"] = guess["encoding"] and "cp1252"
    if guess["encoding"] is None or b"\0" in sample:
        raise UnreadableError("binary: its bytes are not text in any known encoding")
    return Encoding(codecs.lookup(guess["encoding"]).name, guessed=True)


def _check(stream: BinaryIO, encoding: Encoding) -> None:
    """Reads a whole stream, and refuses text with characters that no text has."""
    stream.seek(0)
    read = 0
    try:
        for piece in characters(stream, encoding.name):
            if "\0" in piece:
                raise UnreadableError(_NUL)
            if any("\ud800" <= char <= "\udfff" for char in piece if not piece.isascii()):
                raise UnreadableError(
                    f"not text in {encoding.name}: it contains an incomplete character"
                )
            read += len(piece)
    except UnicodeError:
        how = "recognised as" if encoding.guessed else "said to be"
        raise UnreadableError(
            f"not text in {encoding.name}, which it is {how}, after {read:,} characters; set its "
            "encoding with --encoding"
        ) from None
