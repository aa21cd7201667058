"""Reads rich text with striprtf, a line for each paragraph."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.parsers import Text, clean
from knn_logits.corpus.rows import Schema, UnreadableError

_LINK = re.compile(
    r"(\{\\field\{\s{0,9}\\\*\\fldinst\{[^{}\n]{0,300}HYPERLINK\s(\"[^\"\n]{0,2000}\")\}{2}"
    r"\s{0,9}\{[^}\n]{0,4000}\}{2,3})",
    re.IGNORECASE,
)
_FONT = re.compile(r"\\f(\d{1,9})[^;\n]{0,300}?\\fcharset(\d{1,9})([^;]{1,300});")


def read(stream: Any, schema: Schema) -> Iterator[Text]:
    from striprtf import striprtf

    data = stream.read()
    if not data.lstrip().startswith(b"{\\rtf"):
        raise UnreadableError("not rich text: it does not begin with {\\rtf; rename it to .txt")
    # Its own patterns for links and fonts take a time that grows with the cube of a hostile file.
    striprtf.HYPERLINKS, striprtf.FONTTABLE = _LINK, _FONT
    # The file writes all characters but ASCII as escapes, in an encoding that it names.
    convert: Any = striprtf.rtf_to_text
    text = convert(data.decode(schema.encoding or "cp1252", "replace"), errors="replace")
    for line in clean(text).splitlines(keepends=True):
        yield Text(line, "" if line.isspace() else "p")
