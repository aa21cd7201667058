"""Makes text from outside fit to be printed, without characters that control a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TextIO

# Control characters but tab and line feed, signs of direction, separators of lines and paragraphs,
# halves of characters, marks around annotations.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff"
    "\ufff9-\ufffb]"
)
_REPLACEMENT = "\ufffd"


def printable(text: str) -> str:
    """A text without control characters. Line feeds and tabs stay."""
    return _STEERING.sub(_REPLACEMENT, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """A text as one line: every run of white space is one space, also at its ends."""
    joined = _STEERING.sub(_REPLACEMENT, " ".join(text.split()))
    left = " " if text[:1].isspace() else ""
    right = " " if joined and text[-1:].isspace() else ""
    return left + joined + right


def first_few(names: Sequence[str]) -> str:
    """Lists the first three of some names, and says whether there are more."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def json_line(content: Any, encoding: str | None = None) -> str:
    """A value as JSON in one line, with escapes for what the stream's encoding lacks."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    # JSON allows these characters in strings only, and there they may be written in this form.
    text = _STEERING.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return json.dumps(content, ensure_ascii=True, allow_nan=False)
    return text


class Encoded:
    """A stream that accepts every character. One that its encoding lacks is written as a number."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
