"""Writes the roles and links of reStructuredText as the words that a reader of the page sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# :meth:`~flask.Flask.route`, :py:class:`int`, and `the list <https://…>`_; not ``:ref:`x` ``.
# The limits of a role's parts keep the time from growing with the square of a text's length.
_ROLE = re.compile(r"(?<![\w:`])(?::[A-Za-z][\w.+-]{0,63}){1,4}:`([^`]+)`")
_LINK = re.compile(r"(?<![\w:`])`([^`<]+<[^`<>]+>)`__?")
_TITLED = re.compile(r"(.*\S)\s*<[^<>]*>", re.DOTALL)
_CODE = re.compile(r"\.\. (?:code|code-block|sourcecode|parsed-literal|prompt|doctest|testcode)::")
# A longer paragraph is taken in parts.
_LONGEST = 1 << 20


def reading_text(pieces: Iterable[str]) -> Iterator[str]:
    """Yields paragraph after paragraph. Code is left as it is, and all lines keep their numbers."""
    code = -1  # the indentation of what introduces the code, or -1 outside of code
    for paragraph in _paragraphs(pieces):
        first = next((line for line in paragraph.split("\n") if line.strip()), "")
        indentation = len(first) - len(first.lstrip())
        if not first or indentation > code >= 0:
            yield paragraph
            continue
        yield _LINK.sub(_shown, _ROLE.sub(_shown, paragraph))
        introduces = paragraph.rstrip().endswith("::") and not first.lstrip().startswith("..")
        code = indentation if introduces or _CODE.match(first.lstrip()) else -1


def _shown(match: re.Match[str]) -> str:
    text = match[1].removeprefix("!")
    titled = _TITLED.fullmatch(text)
    if titled:
        text = titled[1]
    else:
        text = text.rpartition(".")[2] if text.startswith("~") else text.removeprefix(".")
    return text + "\n" * (match[0].count("\n") - text.count("\n"))


def _paragraphs(pieces: Iterable[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        rest += piece
        *whole, rest = re.split(r"(?<=\n)(?=[ \t]*\n)", rest)
        yield from whole
        if len(rest) > _LONGEST:
            yield rest
            rest = ""
    yield rest
