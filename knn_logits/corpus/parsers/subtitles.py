"""Reads subtitles: what is said, with the time of each caption as its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.blocks import paragraphs
from knn_logits.corpus.parsers import Text, clean
from knn_logits.corpus.rows import Schema, UnreadableError
from knn_logits.corpus.texts import characters

_TIME = re.compile(r"\s*((?:\d{1,3}:)?\d{1,2}:\d\d)[.,]\d{1,3}\s*-->\s*\d")
_MARK = re.compile(r"<[^<>\n]{0,100}>|\{\\[^{}\n]{0,100}\}")
_ENDS = (".", "!", "?", "…", "”", '"', "。")


def read(stream: Any, schema: Schema) -> Iterator[Text]:
    """Reads `.srt` and `.vtt`. A caption that does not end a sentence goes on in the next one."""
    ended, found, gap = True, False, ""
    for lines, _, _ in paragraphs(characters(stream, schema.encoding)):
        time = next((n for n, line in enumerate(lines) if _TIME.match(line)), None)
        if time is None:
            continue  # a header, a style or a note
        said = clean(" ".join(_MARK.sub("", "".join(lines[time + 1 :])).split()))
        begins = _TIME.match(lines[time])
        if not said or begins is None:
            continue
        if found:
            gap = "\n" if ended else " "
        yield Text(gap + said, "p" if ended else "", begins[1])
        ended, found = said.endswith(_ENDS), True
    if not found:
        raise UnreadableError("it has no captions with times; rename it to .txt")
    yield Text("\n", "")
