"""Text of others, made fit to be printed: the one place that it goes through on its way out.

A datastore's titles, passages, names and settings may be anybody's, and so may be what a model
writes after them. Some characters do not appear but steer: they move a terminal's cursor, write its
clipboard, or turn a line's order around.
"""

from __future__ import annotations

import json
import re
from typing import Any, TextIO

# Control characters but tab and line feed, signs of direction, separators of lines and paragraphs,
# halves of characters, marks around annotations.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff"
    "\ufff9-\ufffb]"
)
_REPLACEMENT = "\ufffd"


def printable(text: str) -> str:
    """A text with its lines and tabs, and without characters that steer."""
    return _STEERING.sub(_REPLACEMENT, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """A text as one line: every run of white space is one space, also at its ends."""
    joined = _STEERING.sub(_REPLACEMENT, " ".join(text.split()))
    left = " " if text[:1].isspace() else ""
    right = " " if joined and text[-1:].isspace() else ""
    return left + joined + right


def json_line(content: Any, encoding: str | None = None) -> str:
    r"""A value as JSON in one line, the very same when it is read again.

    Args:
        content: Plain values.
        encoding: Of where it is written; all else is written as `\u` and a number, as are
            characters that steer.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    # They can stand in strings only, which know this form of them.
    text = _STEERING.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return json.dumps(content, ensure_ascii=True, allow_nan=False)
    return text


class Encoded:
    """A stream that takes every character: those that its encoding lacks are written as numbers.

    Args:
        stream: What is written to; all else is asked of it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a text, whatever is in it."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
