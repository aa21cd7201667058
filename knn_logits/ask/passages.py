"""Cuts the documents of a datastore in passages: whole paragraphs or sentences under a heading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.engine.pieces import InnerText, decoded
from knn_logits.engine.tokens import special_ids
from knn_logits.store.datastore import Datastore

# A passage grows to so many tokens, paragraph by paragraph. A paragraph stays whole up to the
# second number, and is cut at its sentences beyond.
PASSAGE_TOKENS, MOST_TOKENS = 160, 320
_LONGEST_HEADING = 90
# A line of running text has so many characters at least, or it ends a sentence. A line half as long
# above it is a heading.
_TEXT_LINE = 60
# Between the columns of a row in plain text, or the cells of a row of HTML.
GAP = re.compile(r"(?<=\S)(?: {3,}| *\t[ \t]*)(?=\S)")
ENDS_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*\s*$|[。\uff01\uff1f]\s*$")
# A question is the heading of its answer, as in a FAQ.
_NO_HEADING = re.compile(r"[.,;:!]$|^[-*+>|$]|^\d+[.)]?\s*$")
# "2. Charging" is a heading, unless a paragraph beside it is like it, as in a list. "3.1 Scope"
# always is.
_NUMBERED = re.compile(r"\s*\d{1,2}(?:(\.\d{1,2})+\.?|[.)]?)[ \t]+(?=[^\W\d_])")
# Kinds of files whose first heading is their title: in source code it is a comment. What may stand
# before it are labels, pictures, and the fields at the top of Markdown.
_PROSE = re.compile(r"[^.]*$|.*\.(?:docx|epub|html?|markdown|md|pdf|rst|rtf|txt)\b", re.IGNORECASE)
_PREAMBLE = re.compile(r"\.\. |:\w|\([\w-]+\)=|<|\[?!\[|---\n")
_FIELDS = re.compile(r"---\n(?:.*\n)*?---\n")
_TITLE = re.compile(r"^title:[ \t]*(\S.*)", re.MULTILINE | re.IGNORECASE)
_UNDERLINE = re.compile(r"[=\-~^\"'`#*+]{3,}")
# The name of what a reStructuredText directive describes: ".. py:data:: DEBUG".
DESCRIBED = re.compile(
    r"\.\. (?:\w+:)?(?:attribute|class|confval|data|decorator|describe|envvar|exception|function"
    r"|macro|method|module|object|option|setting|type)::\s+(\S.*)"
)


@dataclass(frozen=True, eq=False)
class Passage:
    """A span of a document's tokens that is read as a whole.

    Attributes:
        store: The datastore.
        document: The document's number in it.
        first: Position of its first token in the datastore's tokens.
        end: Position after its last token.
        heading: The heading that it stands under; empty if there is none.
        text: Its text.
        opening: The heading that its document opens with; empty if it opens with none.
        over: The headings without a text that it begins with, above its own.
    """

    store: Datastore
    document: int
    first: int
    end: int
    heading: str
    text: str
    opening: str = ""
    over: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The document's title, or the heading that it opens with, or its id."""
        record = self.store.documents[self.document].shown
        return record.title or self.opening or record.id

    @property
    def named(self) -> str:
        """All that names it: what the document is called, what it opens with, and its heading."""
        record = self.store.documents[self.document].shown
        names = [record.title] if record.title else [record.id, self.opening]
        return "\n".join([*names, self.heading])

    @property
    def above(self) -> str:
        """Its title and its heading in one line."""
        heading = " ".join(self.heading.split())
        return f"{self.title}: {heading}" if heading not in ("", self.title) else self.title


def sentence_span(text: str, sentence: str) -> tuple[int, int] | None:
    """Finds a sentence in a text, however its lines are broken; None if it is empty or missing."""
    words = r"\s+".join(map(re.escape, sentence.split()))
    match = re.search(words, text) if words else None
    return match.span() if match else None


def passages_of(tokenizer: Any, store: Datastore) -> list[Passage]:
    """Cuts all documents of a datastore that are not removed, in their order."""
    if store.manifest.learned is not None:
        return []
    tokens = np.asarray(store.tokens)
    marks = _Marks.of(tokenizer, tokens)
    removed = set(store.manifest.removed)
    return [
        passage
        for number, first in enumerate(store.documents.first.tolist())
        if number not in removed
        for passage in _with_bodies(_cut(tokenizer, store, number, first, marks))
    ]


@dataclass(frozen=True)
class _Marks:
    """What kinds of tokens there are, bool [vocabulary] each."""

    breaks: Array  # ends with a line break
    begins: Array  # begins with a line break
    empty_line: Array  # has an empty line within
    ends_sentence: Array
    spaced: Array  # begins with white space, or with a letter that needs none before it
    special: Array

    @classmethod
    def of(cls, tokenizer: Any, tokens: Array) -> _Marks:
        used = np.unique(tokens)
        size = int(used[-1]) + 1 if len(used) else 0
        inner = InnerText(tokenizer, used.tolist())
        texts = {token: inner([token]) for token in used.tolist()}

        def those(is_so: Any) -> Array:
            table = np.zeros(size, bool)
            table[[token for token, text in texts.items() if is_so(text)]] = True
            return table

        special = np.zeros(size, bool)
        special[[token for token in special_ids(tokenizer) if token < size]] = True
        return cls(
            breaks=those(lambda text: text.rstrip(" \t").endswith("\n")),
            begins=those(lambda text: text.lstrip(" \t\r").startswith("\n")),
            empty_line=those(lambda text: re.search(r"\n[ \t\r]*\n", text) is not None),
            ends_sentence=those(lambda text: ENDS_SENTENCE.search(text) is not None),
            spaced=those(lambda text: text[:1].isspace() or text[:1] > "\u2e7f"),
            special=special,
        )


def _paragraph_ends(ids: Array, marks: _Marks) -> Array:
    """Positions after the last token of each paragraph, int64 ascending."""
    if not len(ids):
        return np.empty(0, np.int64)
    breaks, begins = marks.breaks[ids], marks.begins[ids]
    ends = marks.empty_line[ids]
    # Two tokens may make an empty line together. The next paragraph then begins after the second.
    ends[1:] |= breaks[:-1] & begins[1:]
    positions = np.flatnonzero(ends) + 1
    return np.unique(np.append(positions, len(ids)))


def _sentence_ends(ids: Array, marks: _Marks) -> Array:
    ends = marks.ends_sentence[ids]
    ends[:-1] &= marks.spaced[ids[1:]]
    return np.unique(np.append(np.flatnonzero(ends) + 1, len(ids)))


def _finer(ends: Array, finer: Array) -> Array:
    """Adds those of finer ends that lie in a part which is too long for a passage."""
    long = np.diff(ends, prepend=0) > MOST_TOKENS
    return np.union1d(ends, finer[long[np.searchsorted(ends, finer)] & (finer > 0)])


def _packed(ends: Array, most: int) -> Iterator[tuple[int, int]]:
    """Spans of whole parts that have at most so many tokens, or a single part."""
    first = last = 0
    for end in ends.tolist():
        if end - first > most and last > first:
            yield first, last
            first = last
        last = end
    if last > first:
        yield first, last


def _cut(
    tokenizer: Any, store: Datastore, number: int, first: int, marks: _Marks
) -> Iterator[Passage]:
    length = int(store.documents.length[number])
    ids = np.asarray(store.tokens[first : first + length])
    heading, pending = "", None  # (first token, end token, heading, parts of its text)
    paragraphs = list(_paragraphs(tokenizer, ids, marks))
    texts = ["", *(text for _, _, text in paragraphs), ""]
    title = _opening_of(store.documents[number].id, texts[1:-1])
    begun = False  # whether all that is pending is a heading's paragraph
    levels: list[tuple[int, str]] = []
    for row, (begin, end, text) in enumerate(paragraphs):
        opening = _heading_of(text) or _numbered_heading(*texts[row : row + 3])
        if opening is not None:
            if pending is not None:
                yield _passage(store, number, first, pending, title)
            heading, begun = _below(levels, text, opening), True
            pending = (begin, end, heading, [text])
            if not _body_of(text):
                continue
        elif pending is not None and (begun or end - pending[0] <= PASSAGE_TOKENS):
            pending, begun = (pending[0], end, heading, [*pending[3], text]), False
        else:
            if pending is not None:
                yield _passage(store, number, first, pending, title)
            pending, begun = (begin, end, heading, [text]), False
        if pending[1] - pending[0] > MOST_TOKENS:
            for passage in _long(tokenizer, store, number, first, ids, pending, marks):
                yield replace(passage, opening=title)
            pending = None
    if pending is not None:
        yield _passage(store, number, first, pending, title)


def _with_bodies(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Joins a heading without a text to the passage below it: alone it answers nothing."""
    alone: Passage | None = None
    for passage in passages:
        if alone is not None and passage.end - alone.first <= PASSAGE_TOKENS:
            text = f"{alone.text}\n\n{passage.text}"
            over = (*alone.over, alone.heading)
            passage = replace(passage, first=alone.first, text=text, over=over)
        elif alone is not None:
            yield alone
        last = passage.text.rpartition("\n\n")[2] if passage.over else passage.text
        bare = passage.heading.endswith(_heading_of(last) or "\n") and not DESCRIBED.match(last)
        alone = passage if bare and not _body_of(last) else None
        if alone is None:
            yield passage
    if alone is not None:
        yield alone


def _below(levels: list[tuple[int, str]], paragraph: str, name: str) -> str:
    """A heading after those of Markdown that it stands under, from the second level on."""
    level = len(paragraph.strip()) - len(paragraph.strip().lstrip("#"))
    if not level:
        return name
    while levels and levels[-1][0] >= level:
        levels.pop()
    # A document has one heading of the first level, its title. Further ones are comments in code.
    if level > 1:
        levels.append((level, name))
    return ": ".join(name for _, name in levels) or name


def _body_of(paragraph: str) -> str:
    """What a paragraph has below its first line, without the line under a heading."""
    return _UNDERLINE.sub("", paragraph.strip().partition("\n")[2]).strip()


def _paragraphs(tokenizer: Any, ids: Array, marks: _Marks) -> Iterator[tuple[int, int, str]]:
    """The paragraphs that are not blank: their first token, the one after the last, their text."""
    start = 0
    for end in _paragraph_ends(ids, marks).tolist():
        span = ids[start:end]
        text = decoded(tokenizer, span[~marks.special[span]].tolist())
        if text.strip():
            yield start, end, text
        start = end


def _long(
    tokenizer: Any,
    store: Datastore,
    number: int,
    first: int,
    ids: Array,
    pending: tuple[int, int, str, list[str]],
    marks: _Marks,
) -> Iterator[Passage]:
    """Cuts a paragraph that is too long: at sentences and lines, else between words or tokens."""
    begin, end, heading, _ = pending
    span = ids[begin:end]
    ends = np.union1d(_sentence_ends(span, marks), np.flatnonzero(marks.breaks[span]) + 1)
    # No passage is longer than that, whatever a stranger wrote: the model reads it as a whole.
    ends = _finer(ends, np.flatnonzero(marks.spaced[span]))
    ends = _finer(ends, np.arange(PASSAGE_TOKENS, len(span), PASSAGE_TOKENS))
    for start, stop in _packed(ends, PASSAGE_TOKENS):
        part = span[start:stop]
        text = decoded(tokenizer, part[~marks.special[part]].tolist())
        if text.strip():
            yield _passage(store, number, first, (begin + start, begin + stop, heading, [text]))


def _passage(
    store: Datastore,
    number: int,
    first: int,
    pending: tuple[int, int, str, list[str]],
    title: str = "",
) -> Passage:
    begin, end, heading, texts = pending
    text = "".join(texts).strip()
    return Passage(store, number, first + begin, first + end, heading, text, title)


def _heading_of(paragraph: str) -> str | None:
    """The heading that a paragraph begins with; None if it has none."""
    line, _, rest = paragraph.strip().partition("\n")
    line = line.strip()
    if line.startswith("#"):
        name = line.lstrip("#").strip().rstrip("#").strip()
        return name[:_LONGEST_HEADING] or None
    if described := DESCRIBED.match(line):
        return described[1][:_LONGEST_HEADING]
    below = rest.partition("\n")[0].strip()
    underlined = bool(_UNDERLINE.fullmatch(below)) and len(below) >= len(line) // 2
    alone = not rest.strip()
    is_text = len(below) >= _TEXT_LINE or ENDS_SENTENCE.search(below)
    above_text = bool(is_text) and len(below) >= 2 * len(line) and below[:1].isupper()
    above_text = above_text or (GAP.search(below) is not None and not GAP.search(line))
    if not line or len(line) > _LONGEST_HEADING or not (underlined or alone or above_text):
        return None
    if underlined:
        return " ".join(line.split())
    # A single line without an end, which is indented no further than its document. Above a text it
    # may have a number.
    plain = not paragraph.lstrip("\n").startswith((" ", "\t")) and not _NO_HEADING.search(line)
    number = _NUMBERED.match(line) if above_text else None
    begins = line[number.end() if number else 0 :][:1].isupper()
    return " ".join(line.split()) if plain and begins else None


def _numbered_heading(before: str, paragraph: str, after: str) -> str | None:
    """The heading that a numbered line is; None for an item of a list."""
    line = paragraph.strip()
    number = _NUMBERED.match(line)
    if number is None or "\n" in line or len(line) > _LONGEST_HEADING or not after:
        return None
    if _NO_HEADING.search(line) or not line[number.end()].isupper():
        return None
    beside = (_NUMBERED.match(text) for text in (before, after))
    is_item = not number[1] and any(match and not match[1] for match in beside)
    return None if is_item else " ".join(line.split())


def _opening_of(name: str, texts: Iterable[str]) -> str:
    """The heading that a document opens with, which is its title where none was given.

    The field `title` at the top of Markdown counts as one.
    """
    for text in texts if _PROSE.match(name) else ():
        text = text.lstrip()
        fields = _FIELDS.match(text)
        title = _TITLE.search(fields[0]) if fields else None
        if title is not None:
            return title[1].strip(" \t\"'")
        text = text[fields.end() :] if fields else text
        heading = _heading_of(text) if text else None
        if heading or (text and not _PREAMBLE.match(text)):
            return heading or ""
    return ""
