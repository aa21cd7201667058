"""Plain text: its encoding, its characters, and its rows with headings or lines as places."""

from __future__ import annotations

import codecs
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from knn_logits.corpus.documents import Place
from knn_logits.corpus.rows import Row, UnreadableError
from knn_logits.errors import ConfigError

CHUNK = 1 << 20
EXTRA = 'pip install "knn-logits[documents]"'
# The most characters of a row, apart from the rest of its last line. Each part of a larger file is
# a row with the file's id, so that memory is bounded and one name removes all parts.
LARGEST = 4 << 20
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
# A file counts as UTF-8 if it has so many UTF-8 characters for each byte that is not UTF-8.
_MOSTLY = 4
# Characters between two places of a plain text, which is about a paragraph.
_APART = 400
_LONGEST_HEADING = 80
_MARKER = re.compile(r" {0,3}#{1,6}(?=[ \t])")
_BLANK = re.compile(r"[^\S\n]*\n")
_FENCE = re.compile(r" {0,3}(?:(```+)[^`]*|(~~~+).*)$", re.DOTALL)
# The line under a heading. Several lines, a list, a quotation or a table above it are no heading.
_UNDERLINE = re.compile(r" {0,3}(?:={2,}|-{2,})[ \t]*$")
_NO_PARAGRAPH = re.compile(r"\s|[-*+>|]|\d+[.)]\s|<")
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
        for piece in characters(stream, encoding):
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


class Gathering:
    """Gathers text that arrives in blocks, each with its place, into copies of a row."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._texts: list[str] = []
        self._size = 0
        self._places: list[Place] = []
        self._last = Place(0, "")
        self._part = False

    def add(self, text: str, place: str = "", fragment: str = "") -> Iterator[Row]:
        """Takes a block, and yields the rows that are full."""
        if place and place != self._last.name:
            self._last = Place(self._size, place, fragment)
            self._places.append(self._last)
        self._texts.append(text)
        self._size += len(text)
        while self._size > LARGEST:
            whole = "".join(self._texts)
            end = whole.rfind("\n", 0, LARGEST) + 1 or LARGEST
            yield self._row_of(whole[:end])
            self._texts, self._size = [whole[end:]], len(whole) - end

    def rest(self) -> Iterator[Row]:
        """Yields the rest of the text as the last row, if there is any."""
        text = "".join(self._texts)
        if text.strip() or not self._part:
            yield self._row_of(text)

    def _row_of(self, text: str) -> Row:
        end = len(text)
        inside = [place for place in self._places if place.start < end]
        after = [
            replace(place, start=place.start - end) for place in self._places if place.start >= end
        ]
        if inside and (not after or after[0].start > 0):
            after.insert(0, replace(inside[-1], start=0))
        self._places = after
        part, self._part = self._part, True
        return replace(
            self._row, fields={**self._row.fields, "text": text}, places=inside, part=part
        )


def plain_rows(pieces: Iterable[str], row: Row, *, headings: bool = False) -> Iterator[Row]:
    """Yields a plain text as copies of a row. Places are its lines, or Markdown's headings."""
    gathering = Gathering(row)
    full = itertools.chain.from_iterable(map(gathering.add, pieces))
    line, heading = 1, Place(0, "")
    for part in itertools.chain(full, gathering.rest()):
        text = str(part.fields["text"])
        places = _headings(text, heading) if headings else []
        heading = places[-1] if places else heading
        # A single line is a single place.
        if not places and (part.part or "\n" in text.strip()):
            places = _lines(text, line)
        if text.strip() or not part.part:
            yield replace(part, places=places)
        line += text.count("\n")


def _lines(text: str, number: int) -> list[Place]:
    """Returns some lines of a text that begins in line `number`."""
    places = [Place(0, f"line {number}")]
    start = 0
    while (end := text.find("\n", start) + 1) and end < len(text):
        number, start = number + 1, end
        # Many tokenizers have a token for several line breaks. A place that began within it could
        # not be told from one before, so no place is a blank line.
        if start - places[-1].start >= _APART and not _BLANK.match(text, start):
            places.append(Place(start, f"line {number}"))
    return places


def _headings(text: str, before: Place) -> list[Place]:
    """Returns the headings of Markdown. The text before the first one has the place `before`."""
    headings: list[tuple[int, int, str]] = []  # position, level, name
    start, fence, last, lines = 0, "", "", 0  # `lines` of the paragraph that ends with `last`
    # What stands at the beginning of a file between two rules describes it.
    front = not before.name and text.startswith("---\n") and "\n---\n" in text[3:]
    for line in text.split("\n"):
        fenced = _FENCE.match(line)
        name, at, level = "", start, 0
        if front:
            front = start == 0 or line != "---"
        elif fence:
            # The line that ends a block has no words, and at least as many signs.
            if fenced and (fenced[1] or fenced[2]).startswith(fence) and not line.strip(" `~\t"):
                fence = ""
        elif fenced:
            fence = fenced[1] or fenced[2]
        elif lines == 1 and _UNDERLINE.match(line) and not _NO_PARAGRAPH.match(last):
            name, at = " ".join(last.split()), start - len(last) - 1
            level = 1 if "=" in line else 2
        else:
            name = _heading_of(line)
            level = len(line.split()[0]) if name else 0
        words = line.strip() and not (front or fence or fenced or name or _UNDERLINE.match(line))
        last, lines = line, lines + 1 if words else 0
        if name:
            headings.append((at, level, name))
        start += len(line) + 1
    return [*([replace(before, start=0)] if before.name else []), *_told_apart(headings)]


def _told_apart(headings: list[tuple[int, int, str]]) -> Iterator[Place]:
    """The places of headings. Where several have one name, it comes after the heading above."""
    counts = Counter(name for _, _, name in headings)
    above: list[tuple[int, str]] = []
    for at, level, name in headings:
        while above and above[-1][0] >= level:
            above.pop()
        shown = f"{above[-1][1]}: {name}" if above and counts[name] > 1 else name
        above.append((level, name))
        slug = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")[:100]
        yield Place(at, quoted(shown), slug)


def _heading_of(line: str) -> str:
    """Returns the text of a Markdown heading. Its time is linear: a stranger wrote the line."""
    marker = _MARKER.match(line)
    if marker is None:
        return ""
    name = line[marker.end() :].strip()
    shorter = name.rstrip("#")
    if shorter == "" or shorter[-1].isspace():
        name = shorter
    return " ".join(name.split())


def quoted(name: str) -> str:
    """Makes a heading the name of a place; empty for an empty one."""
    name = " ".join(name.split())
    short = name if len(name) <= _LONGEST_HEADING else f"{name[: _LONGEST_HEADING - 1]}…"
    return f"“{short}”" if short else ""
