"""Reads reStructuredText, whose roles and links become the words that a reader of the page sees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.blocks import paragraphs, prose, underlined
from knn_logits.corpus.parsers import Text
from knn_logits.corpus.parsers.plain import placed
from knn_logits.corpus.rows import Schema
from knn_logits.corpus.texts import characters
from knn_logits.store.blocks import HEADINGS

# :meth:`~flask.Flask.route`, :py:class:`int`, and `the list <https://…>`_; not ``:ref:`x` ``.
# The limits of a role's parts keep the time from growing with the square of a text's length.
_ROLE = re.compile(r"(?<![\w:`])(?::[A-Za-z][\w.+-]{0,63}){1,4}:`([^`]+)`")
_LINK = re.compile(r"(?<![\w:`])`([^`<]+<[^`<>]+>)`__?")
_TITLED = re.compile(r"(.*\S)\s*<[^<>]*>", re.DOTALL)
_CODE = re.compile(r"\.\. (?:code|code-block|sourcecode|parsed-literal|prompt|doctest|testcode)::")


def read(stream: Any, schema: Schema) -> Iterator[Text]:
    """Reads block after block. Code is left as it is, and all lines keep their numbers."""
    return placed(_blocks(stream, schema))


def _blocks(stream: Any, schema: Schema) -> Iterator[tuple[str, str, int]]:
    code = -1  # the indentation of what introduces the code, or -1 outside of code
    signs: list[str] = []  # those under the headings, the highest first
    for lines, number, begins in paragraphs(characters(stream, schema.encoding)):
        first = lines[0]
        indentation = len(first) - len(first.lstrip())
        if first.isspace() or indentation > code >= 0:
            kind = "pre" if begins and not first.isspace() else ""
            yield kind, "".join(lines), number
            continue
        sign, end = underlined(lines)
        if sign:
            sign += str(end)
            signs += [] if sign in signs else [sign]
            rest = end if "".join(lines[end:]).strip() else len(lines)
            yield HEADINGS[min(5, signs.index(sign))], _shown("".join(lines[:rest])), number
            lines, number = lines[rest:], number + rest
        text = "".join(lines)
        for kind, part, line in prose([_shown(text)]) if text.strip() else ():
            kind = "p" if kind in HEADINGS else kind
            yield kind if begins or line > 1 else "", part, number + line - 1
        introduces = text.rstrip().endswith("::") and not first.lstrip().startswith("..")
        code = indentation if introduces or _CODE.match(first.lstrip()) else -1


def _shown(text: str) -> str:
    return _LINK.sub(_words, _ROLE.sub(_words, text))


def _words(match: re.Match[str]) -> str:
    text = match[1].removeprefix("!")
    titled = _TITLED.fullmatch(text)
    if titled:
        text = titled[1]
    else:
        text = text.rpartition(".")[2] if text.startswith("~") else text.removeprefix(".")
    return text + "\n" * (match[0].count("\n") - text.count("\n"))
